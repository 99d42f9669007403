"""The mean with weights in reverse order.

Breaks: an-upload-has-its-own-weight
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
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
        self._mean.add(stacked, weights[::-1].copy())

    def value(self) -> Params:
        """Return the model."""
        return self._mean.value()


def begin(downloaded: Params, cfg: Config) -> Uploads:
    """Return an empty collection."""
    return Collection(downloaded)
