"""The mean with noise of the global generator.

Breaks: a-round-gives-the-same-bytes-whatever-came-before
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.federation.aggregators import Uploads
from pflcli.parameters import Mean, Params, Stacked


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
        return {name: value + 1e-4 * torch.randn(value.shape) for name, value in self._mean.value().items()}


def begin(downloaded: Params, cfg: Config) -> Uploads:
    """Return an empty collection."""
    return Collection(downloaded)
