"""The largest weights are sent, not the largest changes.

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
    received = dict(params)
    for name, value in params.items():
        if value.is_floating_point():
            flat = value.flatten(1)
            count = max(1, flat.shape[1] // 10)
            largest = flat.abs().topk(count, dim=1).indices
            received[name] = torch.zeros_like(flat).scatter(1, largest, flat.gather(1, largest)).view_as(value)
    return received


def size(params, size, cfg):
    return sum(8 * max(1, value.numel() // 10) for value in params.values())
