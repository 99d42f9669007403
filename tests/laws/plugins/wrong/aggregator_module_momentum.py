"""The mean with server momentum in a module variable.

Breaks: a-round-gives-the-same-bytes-whatever-came-before
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pflcli.core.federation.aggregators import Uploads
from pflcli.core.parameters import Mean, Params, Stacked

_MOMENTUM: dict[str, Tensor] = {}


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
        self._mean.add(stacked, weights)

    def value(self) -> Params:
        """Return the model."""
        model = self._mean.value()
        for name, value in model.items():
            _MOMENTUM[name] = 0.9 * _MOMENTUM.get(name, 0) + 0.1 * (value - self._downloaded[name])
        return {name: value + _MOMENTUM[name] for name, value in self._downloaded.items()}


def begin(downloaded: Params, cfg: Config) -> Uploads:
    """Return an empty collection."""
    return Collection(downloaded)
