"""Clip each client's update to a norm: a longer update is shortened, and its direction stays the same.

McMahan et al. (2018), https://arxiv.org/abs/1710.06963, flat clipping: update * min(1, norm / |update|), with the
Euclidean norm over everything that is uploaded. It bounds what one client can do to the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt

from pflcli.core.parameters import Stacked

BIASED = True


@dataclass(frozen=True)
class Config:
    """Options of the step."""

    norm: Annotated[float, Gt(0)] = 1.0
    """shorten updates to at most this Euclidean norm"""


def apply(params: Stacked, downloaded: Stacked, cfg: Config, draw: object = None) -> Stacked:
    """Return the uploads (m, ...) with updates of norm at most ``cfg.norm``; shorter updates do not change at all."""
    update = {name: value - downloaded[name] for name, value in params.items() if value.is_floating_point()}
    norms = [torch.linalg.vector_norm(value.unsqueeze(-1).flatten(1).double(), dim=1) for value in update.values()]
    norm = torch.linalg.vector_norm(torch.stack(norms), dim=0)  # (m,)
    clipped = dict(params)
    for name, value in update.items():
        shape = (-1, *[1] * (value.ndim - 1))
        factor = (cfg.norm / norm).to(value.dtype).view(shape)
        clipped[name] = torch.where((norm > cfg.norm).view(shape), downloaded[name] + factor * value, params[name])
    return clipped
