"""Half of the numbers are dropped at random, and the others are not doubled.

Warns: updates-arrive-unbiased-or-it-is-declared
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

RANDOM = True


@dataclass(frozen=True)
class Config:
    """No options."""


def apply(params, downloaded, cfg, draw):
    received = dict(params)
    for name, value in params.items():
        if value.is_floating_point():
            kept = [draw(i).random(tuple(value.shape[1:])) < 0.5 for i in range(len(value))]
            received[name] = downloaded[name] + (value - downloaded[name]) * torch.from_numpy(np.stack(kept))
    return received


def size(params, size, cfg):
    return size
