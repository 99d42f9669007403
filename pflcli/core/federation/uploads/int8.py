"""Send each client's update in 8 bits a number: a quarter of the bytes of float32.

Each tensor of the update is divided by its largest absolute value / 127 and rounded to the nearest integer; the server
receives the integers and the scale, 4 bytes per tensor (after Konecny et al., 2016, https://arxiv.org/abs/1610.05492,
who round at random, to fewer bits). Integer buffers are not changed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pflcli.core.parameters import Params, Stacked

_MAX_LEVEL = 127
_SCALE_BYTES = 4
"""Bytes of a tensor's scale."""
_SCALE = "scale:"
"""Prefix of the name of a tensor's scale."""


@dataclass(frozen=True)
class Config:
    """No options."""


def apply(params: Stacked, downloaded: Stacked, cfg: Config, draw: object = None) -> Stacked:
    """Return the uploads (m, ...) as the server decodes them."""
    received = dict(params)
    for name, value in params.items():
        if value.is_floating_point():
            levels, scale = _quantize(value - downloaded[name])
            received[name] = _decode(levels, scale, downloaded[name])
    return received


def pack(params: Stacked, downloaded: Stacked, cfg: Config) -> Stacked:
    """Return the integers (m, ...) and the scales (m,) that are sent, of which ``unpack`` makes the uploads."""
    sent = Stacked()
    for name, value in params.items():
        sent[name] = value
        if value.is_floating_point():
            levels, scale = _quantize(value - downloaded[name])
            sent |= {name: levels.to(torch.int8), _SCALE + name: scale.reshape(-1)}
    return sent


def unpack(sent: Stacked, downloaded: Stacked, cfg: Config) -> Stacked:
    """Return the uploads (m, ...) of the tensors that ``pack`` returned."""
    received = Stacked()
    for name, value in sent.items():
        if name not in downloaded:
            continue  # a scale
        received[name] = value
        if downloaded[name].is_floating_point():
            scale = sent[_SCALE + name].view(-1, *[1] * (value.ndim - 1))
            received[name] = _decode(value.to(scale.dtype), scale, downloaded[name])
    return received


def _quantize(update: Tensor) -> tuple[Tensor, Tensor]:
    """Return the whole numbers (m, ...) of updates (m, ...), and their scales (m, 1, ...)."""
    largest = update.unsqueeze(-1).flatten(1).abs().amax(dim=1).view(-1, *[1] * (update.ndim - 1))
    scale = torch.where(largest > 0, largest / _MAX_LEVEL, 1)
    return torch.round(update / scale), scale


def _decode(levels: Tensor, scale: Tensor, downloaded: Tensor) -> Tensor:
    return downloaded + levels * scale


def size(params: Params, size: int, cfg: Config) -> int:
    """Return the bytes of one upload: one per number, and the scales."""
    return sum(
        value.numel() + _SCALE_BYTES if value.is_floating_point() else value.numel() * value.element_size()
        for value in params.values()
    )
