"""Store all uploads of a round, for aggregators that need them at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.core.parameters import Params, Stacked

_BLOCK_BYTES = 8 << 20
"""Bytes of temporary memory per step, in addition to the stored uploads."""

Combine = Callable[[Stacked, NDArray[np.float64]], tuple[Params, NDArray[np.float64]]]
"""Combines uploads (n, ...) with positive weights (n,) into a model; also returns the share left out of each, (n,)."""


class Collected:
    """Stores the uploads of a round until all have arrived, which takes the memory of n models."""

    def __init__(self, combine: Combine) -> None:
        self._combine = combine
        self._parts: list[Stacked] = []
        self._weights: list[NDArray[np.float64]] = []
        self.left_out: NDArray[np.float64] = np.zeros(0)
        """the share (n,) of each upload, in the order of ``add``, that is not in the model; set by ``value``"""

    def add(self, stacked: Stacked, weights: NDArray[np.float64]) -> None:
        """Add the uploads (m, ...) of clients with weights (m,); those with weight 0 are ignored."""
        self._parts.append({name: value.clone() for name, value in stacked.items()})
        self._weights.append(np.asarray(weights, dtype=np.float64))

    def value(self) -> Params:
        """Return the model; raises ValueError if nothing with a positive weight was added."""
        weights = np.concatenate(self._weights) if self._weights else np.zeros(0)
        counted = np.flatnonzero(weights > 0)
        if not len(counted):
            raise ValueError("a model of no uploads is not defined")
        rows = torch.from_numpy(counted)
        joined: Stacked = {}
        for name in [*self._parts[0]]:
            together = torch.cat([part.pop(name) for part in self._parts])
            joined[name] = together if len(rows) == len(together) else together[rows.to(together.device)]
        model, shares = self._combine(joined, weights[counted])
        self.left_out = np.zeros(len(weights))
        self.left_out[counted] = shares
        return model


def combine_by_coordinate(
    stacked: Stacked, reduce: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> tuple[Params, NDArray[np.float64]]:
    """Combine uploads (n, ...) coordinate by coordinate; return the model, and the share (n,) left out of each upload.

    ``reduce`` takes (n, c) sorted numbers and returns (c,) numbers and bounds (2, c): numbers outside of the bounds
    were left out. Integer buffers take the lower median.
    """
    count = len(next(iter(stacked.values())))
    outside, numbers = torch.zeros(count, dtype=torch.float64), 0
    model: Params = {}
    for name, value in stacked.items():
        flat = value.reshape(count, -1)
        if not value.is_floating_point():
            model[name] = flat.sort(dim=0).values[(count - 1) // 2].view(value.shape[1:])
            continue
        reduced = flat.new_empty(flat.shape[1])
        step = max(1, _BLOCK_BYTES // (8 * count))
        for first in range(0, flat.shape[1], step):
            block = flat[:, first : first + step]
            reduced[first : first + step], bounds = reduce(block.double().sort(dim=0).values)
            outside += ((block < bounds[0]) | (block > bounds[1])).sum(dim=1).cpu()
        model[name] = reduced.view(value.shape[1:])
        numbers += flat.shape[1]
    return model, np.asarray(outside / max(numbers, 1))
