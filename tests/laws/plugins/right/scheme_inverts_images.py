"""Blocks of rows; the images of every second client are inverted, and all get some noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pflcli.core.schemes import require_clients


@dataclass(frozen=True)
class Config:
    """No options."""


RANDOM = False


def split(samples, clients, cfg, rng):
    count = require_clients("mine", clients, len(samples.y))
    return np.array_split(np.arange(len(samples.y)), count)


def cluster(clients, cfg):
    return np.arange(clients) % 2


def transform(x, y, group, classes, cfg, rng):
    noise = rng.integers(0, 2, x.shape).astype(x.dtype)
    return (255 - x if group else x) ^ noise, y
