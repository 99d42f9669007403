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
    be positive. At most ``chunk`` models are read, and ``chunk`` means computed, at a time. Sums are in float64;
    integer buffers take the largest value among models with a positive weight.
    """
    for first in range(0, len(weights), chunk):
        rows = slice(first, min(first + chunk, len(weights)))
        chunk_weights = weights[rows]
        senders = np.flatnonzero(chunk_weights.any(axis=0))
        sums: Params = {}
        for start in range(0, len(senders), chunk):
            ids = senders[start : start + chunk]
            _add(sums, models[ids], torch.from_numpy(chunk_weights[:, ids]))
        total = torch.from_numpy(chunk_weights[:, senders].sum(axis=1))
        yield rows, {name: _quotient(sums[name], total, value) for name, value in models.default.items()}


def _add(sums: Params, models: Stacked, weights: Tensor) -> None:
    """Add the ``models`` (p, ...) with their ``weights`` (r, p) to ``sums`` (r, elements)."""
    for name, value in models.items():
        flat, weight = value.flatten(1) if value.ndim > 1 else value[:, None], weights.to(value.device)
        if value.is_floating_point():
            if name not in sums:
                sums[name] = torch.zeros(len(weight), flat.shape[1], dtype=torch.float64, device=flat.device)
            for total, piece in zip(torch.split(sums[name], PIECE, dim=1), split(value), strict=True):
                total.addmm_(weight, piece)
        else:
            least = torch.iinfo(value.dtype).min
            largest = torch.where(weight[..., None] > 0, flat, least).amax(dim=1)
            sums[name] = torch.maximum(sums[name], largest) if name in sums else largest


def _quotient(sums: Tensor, total: Tensor, like: Tensor) -> Tensor:
    if like.is_floating_point():
        sums /= total.to(sums.device)[:, None]
    return sums.to(like.dtype).view(len(sums), *like.shape)
