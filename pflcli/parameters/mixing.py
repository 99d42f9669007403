"""Weighted means of clients' models, one per receiver, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.parameters import Stacked
from pflcli.parameters.model_table import ModelTable


def mixed(models: ModelTable, weights: NDArray[np.float64], chunk: int) -> Iterator[tuple[slice, Stacked]]:
    """Yield receivers, as a slice of the rows of ``weights`` (r, m), with their means of ``models``, stacked.

    ``weights[i, j] >= 0`` is the weight of client j's model for receiver i; each row is divided by its sum, which must
    be positive. As much as ``chunk`` models is read, and ``chunk`` means are computed, at a time, in the models' own
    precision; integer buffers take the largest value among models with a positive weight.
    """
    for first in range(0, len(weights), chunk):
        rows = slice(first, min(first + chunk, len(weights)))
        senders = np.flatnonzero(weights[rows].any(axis=0))
        shares = torch.from_numpy(weights[rows][:, senders] / weights[rows].sum(axis=1, keepdims=True))
        means = {name: value.new_empty((len(shares), *value.shape)) for name, value in models.default.items()}
        for name, columns, piece in models.pieces(senders, models.default, chunk):
            mean = means[name].reshape(len(shares), -1)[:, columns]
            own = shares.to(piece.device)
            if piece.is_floating_point():
                torch.mm(own.to(piece.dtype), piece, out=mean)
            else:
                mean.copy_(torch.where(own[..., None] > 0, piece, torch.iinfo(piece.dtype).min).amax(dim=1))
        yield rows, means
