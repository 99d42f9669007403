"""Superclasses are taken for granted.

Breaks: odd-samples-are-split-or-refused
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pflcli.data.schemes import require_clients


@dataclass(frozen=True)
class Config:
    """No options."""


def split(samples, clients, cfg, rng):
    count = require_clients("mine", clients, len(samples.y))
    order = rng.permutation(len(samples.y))
    order = order[np.argsort(samples.coarse[order], kind="stable")]
    return [np.sort(part) for part in np.array_split(order, count)]
