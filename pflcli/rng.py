"""Keyed randomness: a random number depends on its purpose, not on when it is drawn.

``generator(seed, "sgd", client, t)`` gives the same stream in every process, independent of earlier draws. Therefore
resuming a run, reordering clients or using parallel workers does not change a result.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np


def _digest(seed: int, key: tuple[str | int, ...]) -> bytes:
    return hashlib.sha256(json.dumps([int(seed), *_plain(key)]).encode()).digest()


def _plain(key: tuple[str | int, ...]) -> list[str | int]:
    return [part if isinstance(part, str) else int(part) for part in key]


def generator(seed: int, *key: str | int) -> np.random.Generator:
    """Return the NumPy generator for ``seed`` and the purpose ``key``."""
    words = np.frombuffer(_digest(seed, key)[:16], dtype="<u8")
    return np.random.Generator(np.random.Philox(key=words))


def secret_generators() -> Callable[..., np.random.Generator]:
    """Return ``generator`` with a new 256-bit secret of the operating system as its seed."""
    return partial(generator, secrets.randbits(256))


def integer(seed: int, *key: str | int) -> int:
    """Return a non-negative 63-bit integer for ``seed`` and ``key``, to seed another library."""
    return int.from_bytes(_digest(seed, key)[:8], "little") >> 1


_TORCH_GENERATOR = threading.Lock()


@contextmanager
def seeded_torch(seed: int, *key: str | int) -> Iterator[None]:
    """Seed PyTorch's global generator by ``seed`` and ``key`` inside the block, and restore it afterwards.

    Layers such as dropout take no other generator. All threads share it, so one block runs at a time.
    """
    import torch

    with _TORCH_GENERATOR, torch.random.fork_rng():
        torch.random.manual_seed(integer(seed, *key))
        yield
