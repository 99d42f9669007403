"""The mean of updates whose Euclidean norms are clipped to one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.core.federation.aggregators import Uploads
from pflcli.core.parameters import Mean, Params, Stacked


@dataclass(frozen=True)
class Config:
    """No options."""


class Collection:
    """The uploads of one round."""

    def __init__(self, downloaded: Params) -> None:
        self._downloaded = downloaded
        self._mean = Mean()

    def add(self, stacked: Stacked, weights: NDArray[np.float64]) -> None:
        """Add uploads (m, ...) with weights (m,)."""
        squares = sum(
            (value - self._downloaded[name]).unsqueeze(-1).flatten(1).double().square().sum(dim=1)
            for name, value in stacked.items()
        )
        factors = (1 / torch.as_tensor(squares).sqrt().clamp(min=1)).float()
        clipped = {}
        for name, value in stacked.items():
            start = self._downloaded[name]
            clipped[name] = (start + (value - start) * factors.view(-1, *[1] * start.ndim)).to(value.dtype)
        self._mean.add(clipped, weights)

    def value(self) -> Params:
        """Return the model."""
        return self._mean.value()


def begin(downloaded: Params, cfg: Config) -> Uploads:
    """Return an empty collection."""
    return Collection(downloaded)
