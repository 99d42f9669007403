"""Rounding to integers of the scale is always downwards.

Warns: updates-arrive-unbiased-or-it-is-declared
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Config:
    """No options."""


def apply(params, downloaded, cfg, draw):
    received = dict(params)
    for name, value in params.items():
        if value.is_floating_point():
            update = value - downloaded[name]
            scale = update.flatten(1).abs().amax(dim=1).view(-1, *[1] * (value.ndim - 1)) / 127 + 1e-12
            received[name] = downloaded[name] + torch.floor(update / scale) * scale
    return received


def size(params, size, cfg):
    return sum(value.numel() for value in params.values()) + 4 * len(params)
