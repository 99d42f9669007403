"""Weighted means of clients' models, one per receiver, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.parameters import Params, Stacked
from pflcli.parameters.model_table import ModelTable
from pflcli.parameters.similarity import PIECE, split


def mixed(models: ModelTable, weights: NDArray[np.float64], chunk: int) -> Iterator[tuple[slice, Stacked]]:
    """Yield receivers, as a slice of the rows of ``weights`` (r, m), with their means of ``models``, stacked.

    ``weights[i, j] >= 0`` is the weight of client j's model for receiver i; each row is divided by its sum, which must
    be positive. At most ``chunk`` models are read, and ``chunk`` means computed, at a time. Sums over such parts are in
    float64, those within a part in the models' own precision; integer buffers take the largest value among models with
    a positive weight.
    """
    for first in range(0, len(weights), chunk):
        rows = slice(first, min(first + chunk, len(weights)))
        senders = np.flatnonzero(weights[rows].any(axis=0))
        shares = torch.from_numpy(weights[rows][:, senders] / weights[rows].sum(axis=1, keepdims=True))
        means = _empty(models.default, len(shares), in_one_part=len(senders) <= chunk)
        for start in range(0, len(senders), chunk):
            part = slice(start, start + chunk)
            _add(means, models[senders[part]], shares[:, part], is_first=start == 0)
        yield rows, {name: value.to(models.default[name].dtype) for name, value in means.items()}


def _empty(like: Params, count: int, *, in_one_part: bool) -> Stacked:
    """Return room for ``count`` means; those of several parts are added up in float64."""
    return {
        name: value.new_empty(
            (count, *value.shape),
            dtype=value.dtype if in_one_part or not value.is_floating_point() else torch.float64,
        )
        for name, value in like.items()
    }


def _add(means: Stacked, models: Stacked, shares: Tensor, *, is_first: bool) -> None:
    """Add the ``models`` (p, ...) with their ``shares`` (r, p) to ``means`` (r, ...), or begin with them."""
    for name, value in models.items():
        mean, own = means[name].view(len(shares), -1), shares.to(value.device)
        if value.is_floating_point():
            own = own.to(value.dtype)
            for total, piece in zip(torch.split(mean, PIECE, dim=1), split(value), strict=True):
                if total.dtype == value.dtype:
                    torch.mm(own, piece, out=total)
                else:
                    total.copy_(own @ piece) if is_first else total.add_(own @ piece)
        else:
            least = torch.iinfo(value.dtype).min
            largest = torch.where(own[..., None] > 0, value.view(1, len(value), -1), least).amax(dim=1)
            mean.copy_(largest if is_first else torch.maximum(mean, largest))
