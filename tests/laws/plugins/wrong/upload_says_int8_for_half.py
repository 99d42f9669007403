"""The tensors are rounded to float16, and size counts eight bits.

Breaks: size-has-room-for-what-arrives
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """No options."""


def apply(params, downloaded, cfg, draw):
    received = dict(params)
    for name, value in params.items():
        if value.is_floating_point():
            received[name] = value.half().float()
    return received


def size(params, size, cfg):
    return size // 4
