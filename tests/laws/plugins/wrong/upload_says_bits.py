"""The size is in bits.

Warns: size-has-room-for-what-arrives
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """No options."""


def apply(params, downloaded, cfg, draw):
    return dict(params)


def size(params, size, cfg):
    return 8 * size
