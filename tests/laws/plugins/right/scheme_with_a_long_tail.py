"""Sizes fall by a power law; small clients may have a single sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pflcli.core.schemes import require_clients


@dataclass(frozen=True)
class Config:
    """No options."""


def split(samples, clients, cfg, rng):
    count = require_clients("mine", clients, len(samples.y))
    shares = np.arange(1, count + 1) ** -1.5
    ends = np.round(np.cumsum(shares / shares.sum())[:-1] * len(samples.y)).astype(int)
    return [np.sort(part) for part in np.split(rng.permutation(len(samples.y)), ends)]
