"""Sends the largest changes of each tensor, and says a fifth for every share.

Breaks: size-has-room-for-what-arrives
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt, Le

BIASED = True


@dataclass(frozen=True)
class Config:
    """The option."""

    share: Annotated[float, Gt(0), Le(1)] = 0.1
    """send this share of the changes"""


def apply(params, downloaded, cfg, draw):
    received = dict(params)
    for name, value in params.items():
        if value.is_floating_point():
            change = (value - downloaded[name]).reshape(len(value), -1)
            largest = change.abs().topk(max(1, round(cfg.share * change.shape[1])), dim=1).indices
            kept = torch.zeros_like(change).scatter(1, largest, change.gather(1, largest))
            received[name] = downloaded[name] + kept.view_as(value)
    return received


def size(params, size, cfg):
    return size // 5
