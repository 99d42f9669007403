"""Keyed randomness: a random number depends on its purpose, not on when it is drawn.

``generator(seed, "sgd", client, t)`` gives the same stream in every process, independent of earlier draws. Therefore
resuming a run, reordering clients or using parallel workers does not change a result.
"""

from __future__ import annotations

import hashlib
import json
import random
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np


def _digest(seed: int, key: tuple[str | int, ...]) -> bytes:
    plain = [part if isinstance(part, str) else int(part) for part in key]
    return hashlib.sha256(json.dumps([int(seed), *plain]).encode()).digest()


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


class _Turns:
    """Who may use the global generators, which all threads share: one block that seeds them, or any that watch them."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.watching = 0


_TURNS = _Turns()


@contextmanager
def seeded_globals(seed: int, *key: str | int) -> Iterator[None]:
    """Seed the global generators of PyTorch, NumPy and Python by ``seed`` and ``key``, and restore them afterwards.

    Layers such as dropout take no other generator. All threads share them, so one block runs at a time.
    """
    with _TURNS.changed:
        _TURNS.changed.wait_for(lambda: not _TURNS.watching)
        with kept_globals():
            _seed_globals(integer(seed, *key))
            yield


_DRAWING = threading.RLock()


@contextmanager
def seeded_torch(number: int) -> Iterator[None]:
    """Seed PyTorch's generator, which draws initial weights, in one thread at a time, and restore it afterwards."""
    import torch

    with _DRAWING, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(number)
        yield


@contextmanager
def watched_globals() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether anything was drawn from a global generator since the block began.

    Several threads may watch at the same time; what one of them draws, the others see, too.
    """
    with _TURNS.changed:
        _TURNS.watching += 1
    try:
        before = read_globals()
        yield lambda: read_globals() != before
    finally:
        with _TURNS.changed:
            _TURNS.watching -= 1
            _TURNS.changed.notify_all()


@contextmanager
def kept_globals() -> Iterator[None]:
    """Restore the global generators of PyTorch, NumPy and Python after the block."""
    import torch

    kept, numpy_kept = random.getstate(), np.random.get_state()  # noqa: NPY002 (code of users draws from it)
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(kept)
            np.random.set_state(numpy_kept)  # noqa: NPY002


def _seed_globals(number: int) -> None:
    import torch

    torch.random.manual_seed(number)
    np.random.seed(number % 2**32)  # noqa: NPY002
    random.seed(number)


def read_globals() -> tuple[object, ...]:
    """Return the state of the global generators, to be compared."""
    import torch

    states = [torch.random.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states += torch.cuda.get_rng_state_all()
    _, words, position, *_ = np.random.get_state(legacy=True)  # noqa: NPY002
    return random.getstate(), np.asarray(words).tobytes(), position, *(bytes(state.numpy()) for state in states)
