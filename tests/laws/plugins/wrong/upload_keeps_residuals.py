"""What was rounded off is kept in the module, and added to the next upload of whoever comes.

Breaks: random-steps-are-declared
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_RESIDUAL = {}


@dataclass(frozen=True)
class Config:
    """No options."""


def apply(params, downloaded, cfg, draw):
    received = dict(params)
    for name, value in params.items():
        if value.is_floating_point():
            update = (
                value
                - downloaded[name]
                + (_RESIDUAL[name] if name in _RESIDUAL and len(_RESIDUAL[name]) == len(value) else 0)
            )
            rounded = torch.round(update * 4) / 4
            _RESIDUAL[name] = update - rounded
            received[name] = downloaded[name] + rounded
    return received


def size(params, size, cfg):
    return size
