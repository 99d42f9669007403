"""TITLE: clients send only the largest changes of their model, and zeros for the others.

Replace this text by what the step does, and by its source. ``--upload FILE:0.1`` applies it. ``pfl check FILE`` tests
the laws that every upload step satisfies.

A step that draws random numbers has ``RANDOM = True``, and ``draw(i)`` is the generator of the i-th upload. Its numbers
come from a secret of the run or, with ``RANDOM = "seed"``, from ``--seed``: for numbers that protect nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt, Le

from pflcli.method import Params, Stacked

BIASED = True
"""Updates arrive changed on average: small changes are lost. A step that draws by ``draw(i)`` has ``RANDOM = True``."""


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
            change = (value - downloaded[name]).unsqueeze(-1).flatten(1)  # also of parameters that are single numbers
            count = max(1, round(cfg.share * change.shape[1]))
            largest = change.abs().topk(count, dim=1).indices
            kept = torch.zeros_like(change).scatter(1, largest, change.gather(1, largest))
            received[name] = downloaded[name] + kept.view_as(value)
    return received


def size(params: Params, size: int, cfg: Config) -> int:
    """Return the bytes of one upload that took ``size`` bytes before: a value and a position (4 bytes) are sent."""
    sent = sum(max(1, round(cfg.share * value.numel())) for value in params.values() if value.is_floating_point())
    return min(size, 8 * sent)
