"""A random projection to a quarter of the numbers, whose matrix both sides know; declared as biased."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

BIASED = True


@dataclass(frozen=True)
class Config:
    """No options."""


def apply(params, downloaded, cfg, draw):
    received = dict(params)
    for name, value in params.items():
        if value.is_floating_point():
            update = (value - downloaded[name]).unsqueeze(-1).flatten(1)
            width = update.shape[1]
            basis = np.random.default_rng(width).normal(size=(width, max(1, width // 4)))
            basis = torch.from_numpy(np.linalg.qr(basis)[0].astype(np.float32))
            received[name] = downloaded[name] + (update @ basis @ basis.T).view_as(value)
    return received


def size(params, size, cfg):
    return sum(4 * max(1, value.numel() // 4) for value in params.values())
