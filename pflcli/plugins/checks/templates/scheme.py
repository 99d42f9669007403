"""TITLE: samples are dealt at random, to clients whose sizes grow linearly.

Replace this text by how samples are divided among clients, and by its source. ``pfl check FILE`` tests the laws that
every scheme satisfies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge

from pflcli.method import Indices, Samples, require_clients


@dataclass(frozen=True)
class Config:
    """The options, each with its type, bounds, default and help: ``--set ratio=5``."""

    ratio: Annotated[float, Ge(1)] = 3.0
    """give the largest client this many times the samples of the smallest"""


def split(samples: Samples, clients: int | None, cfg: Config, rng: np.random.Generator) -> list[Indices]:
    """Return each client's rows of ``samples``, without duplicates."""
    count = require_clients("TITLE", clients, len(samples.y))
    shares = np.cumsum(np.linspace(1, cfg.ratio, count))
    ends = np.round(shares / shares[-1] * len(samples.y)).astype(int)[:-1]
    return [np.sort(part) for part in np.split(rng.permutation(len(samples.y)), ends)]
