"""PyTorch's global generator draws the noise.

Breaks: random-steps-are-declared
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

RANDOM = True


@dataclass(frozen=True)
class Config:
    """No options."""


def apply(params, downloaded, cfg, draw):
    received = dict(params)
    for name, value in params.items():
        if value.is_floating_point():
            received[name] = value + 0.01 * torch.randn(value.shape)
    return received


def size(params, size, cfg):
    return size
