"""Stochastic ternary gradients (TernGrad), which are unbiased: two bits a number."""

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
            u = value - downloaded[name]
            s = u.unsqueeze(-1).flatten(1).abs().amax(1).view(-1, *[1] * (value.ndim - 1)).clamp(min=1e-12)
            r = torch.from_numpy(np.stack([d.random(tuple(value.shape[1:])) for d in draws]))
            received[name] = downloaded[name] + u.sign() * s * (r < u.abs() / s)
    return received


def size(params, size, cfg):
    return sum(v.numel() // 4 + 5 for v in params.values())
