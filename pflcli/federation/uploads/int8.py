"""Send each client's update in 8 bits a number: a quarter of the bytes of float32.

Each tensor of the update is divided by its largest absolute value / 127 and rounded to the nearest integer; the server
receives the integers and the scale, 4 bytes per tensor (after Konecny et al., 2016, https://arxiv.org/abs/1610.05492,
who round at random, to fewer bits). Integer buffers are not changed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pflcli.parameters import Params, Stacked

_MAX_LEVEL = 127
_SCALE_BYTES = 4
"""Bytes of a tensor's scale."""


@dataclass(frozen=True)
class Config:
    """No options."""


def apply(params: Stacked, downloaded: Stacked, cfg: Config, draw: object = None) -> Stacked:
    """Return the uploads (m, ...) as the server decodes them."""
    received = dict(params)
    for name, value in params.items():
        if value.is_floating_point():
            update = value - downloaded[name]
            largest = update.unsqueeze(-1).flatten(1).abs().amax(dim=1).view(-1, *[1] * (value.ndim - 1))
            scale = torch.where(largest > 0, largest / _MAX_LEVEL, 1)
            received[name] = downloaded[name] + torch.round(update / scale) * scale
    return received


def size(params: Params, size: int, cfg: Config) -> int:
    """Return the bytes of one upload: one per number, and the scales."""
    return sum(
        value.numel() + _SCALE_BYTES if value.is_floating_point() else value.numel() * value.element_size()
        for value in params.values()
    )
