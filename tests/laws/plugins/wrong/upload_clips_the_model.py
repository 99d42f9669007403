"""The model is clipped instead of its update.

Breaks: no-change-is-sent-as-no-change
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

BIASED = True


@dataclass(frozen=True)
class Config:
    """No options."""


def apply(params, downloaded, cfg, draw):
    floats = {name: value for name, value in params.items() if value.is_floating_point()}
    norm = torch.stack([value.flatten(1).norm(dim=1) for value in floats.values()]).norm(dim=0).clamp(min=1)
    clipped = {name: value / norm.view(-1, *[1] * (value.ndim - 1)) for name, value in floats.items()}
    return {**params, **clipped}


def size(params, size, cfg):
    return size
