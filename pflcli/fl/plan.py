"""What a client does locally, whichever way it is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pflcli.fl.params import Params


@dataclass(frozen=True)
class LocalSGD:
    """What a client does locally.

    ``lr`` maps the local epoch to a learning rate. ``prox=(anchor, mu)`` adds mu (w - anchor) to the gradient;
    ``trainable`` restricts training to parameters whose name starts with it; ``splits`` are what it learns from.
    """

    epochs: int
    batch_size: int
    lr: Callable[[int], float]
    momentum: float = 0.0
    weight_decay: float = 0.0
    prox: tuple[Params, float] | None = None
    trainable: str = ""
    splits: tuple[str, ...] = ("train",)


def batches(order: Tensor, size: int, *, join_single: bool) -> list[Tensor]:
    """Cut a permutation into minibatches; with ``join_single`` a last batch of one sample joins the one before."""
    cut = list(torch.split(order, size))
    if join_single and len(cut) > 1 and len(cut[-1]) == 1:
        cut[-2:] = [torch.cat(cut[-2:])]
    return [batch for batch in cut if len(batch)]
