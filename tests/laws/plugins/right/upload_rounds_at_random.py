"""Stochastic rounding to 15 levels, which is unbiased (QSGD)."""

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
    draws = [draw(i) for i in range(len(next(iter(params.values()))))]
    for name, value in params.items():
        if value.is_floating_point():
            update = value - downloaded[name]
            scale = update.unsqueeze(-1).flatten(1).abs().amax(dim=1).view(-1, *[1] * (value.ndim - 1)) / 7
            scale = torch.where(scale > 0, scale, 1)
            uniform = torch.from_numpy(
                np.stack([each.random(tuple(value.shape[1:]), dtype=np.float32) for each in draws])
            )
            received[name] = downloaded[name] + torch.floor(update / scale + uniform) * scale
    return received


def size(params, size, cfg):
    return sum((value.numel() + 1) // 2 + 4 for value in params.values())
