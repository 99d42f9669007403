"""Owners are shuffled in the order of a set of words.

Breaks: another-process-gives-the-same-split
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
    owners = list(set(samples.owner.tolist() if samples.owner is not None else map(str, samples.y)))
    names = samples.owner if samples.owner is not None else samples.y.astype(str)
    rank = {owner: number for number, owner in enumerate(owners)}
    order = np.asarray([rank[name] for name in names])
    mixed = rng.permutation(len(order))
    mixed = mixed[np.argsort(order[mixed], kind="stable")]
    return [np.sort(part) for part in np.array_split(mixed, count)]
