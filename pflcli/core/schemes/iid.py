"""Samples dealt at random in equal numbers: every client sees the same distribution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pflcli.core.datasets import Samples
from pflcli.core.schemes import Indices, require_clients

TASKS = ("any",)


@dataclass(frozen=True)
class Config:
    """No options."""


def split(samples: Samples, clients: int | None, cfg: Config, rng: np.random.Generator) -> list[Indices]:
    """Return ``clients`` parts whose sizes differ by at most one."""
    count = require_clients("iid", clients, len(samples.y))
    return [np.sort(part) for part in np.array_split(rng.permutation(len(samples.y)), count)]
