"""The loop over tensors returns too early.

Warns: noise-is-on-every-tensor
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
            noise = [draw(i).standard_normal(tuple(value.shape[1:]), dtype=np.float32) for i in range(len(value))]
            received[name] = value + 0.01 * torch.from_numpy(np.stack(noise))
            break
    return received


def size(params, size, cfg):
    return size
