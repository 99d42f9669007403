"""Each tensor is clipped to the norm that the whole update should have.

Warns: tensors-are-shortened-together
"""

from __future__ import annotations

from dataclasses import dataclass

BIASED = True


@dataclass(frozen=True)
class Config:
    """No options."""


def apply(params, downloaded, cfg, draw):
    received = dict(params)
    for name, value in params.items():
        if value.is_floating_point():
            update = value - downloaded[name]
            norm = update.flatten(1).norm(dim=1).view(-1, *[1] * (value.ndim - 1))
            received[name] = downloaded[name] + update * (1 / norm.clamp(min=1))
    return received


def size(params, size, cfg):
    return size
