"""Tensors draw their noise in the order of a set of names.

Breaks: another-process-gives-the-same-uploads
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
    draws = [draw(i) for i in range(len(next(iter(params.values()))))]
    for name in {name for name, value in params.items() if value.is_floating_point()}:
        noise = [each.standard_normal(tuple(params[name].shape[1:]), dtype=np.float32) for each in draws]
        received[name] = params[name] + 0.1 * torch.from_numpy(np.stack(noise))
    return received


def size(params, size, cfg):
    return size
