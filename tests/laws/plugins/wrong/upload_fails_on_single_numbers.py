"""The largest changes of each tensor as a matrix, which a parameter that is a single number does not become.

Breaks: uploads-keep-their-form, models-are-not-changed-in-place, each-upload-stands-alone, random-steps-are-declared
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt, Le

from pflcli.parameters import Params, Stacked

BIASED = True


@dataclass(frozen=True)
class Config:
    """The option of the step; it may have one or none."""

    share: Annotated[float, Gt(0), Le(1)] = 0.1
    """send this share of the changes of each tensor"""


def apply(params: Stacked, downloaded: Stacked, cfg: Config, draw: object = None) -> Stacked:
    """Return the uploads (m, ...) that the server receives of models ``params`` trained from ``downloaded`` ones."""
    received = dict(params)
    for name, value in params.items():
        if value.is_floating_point():
            change = (value - downloaded[name]).flatten(1)
            count = max(1, round(cfg.share * change.shape[1]))
            largest = change.abs().topk(count, dim=1).indices
            kept = torch.zeros_like(change).scatter(1, largest, change.gather(1, largest))
            received[name] = downloaded[name] + kept.view_as(value)
    return received


def size(params: Params, size: int, cfg: Config) -> int:
    """Return the bytes of one upload that took ``size`` bytes before: a value and a position (4 bytes) are sent."""
    sent = sum(max(1, round(cfg.share * value.numel())) for value in params.values() if value.is_floating_point())
    return min(size, 8 * sent)
