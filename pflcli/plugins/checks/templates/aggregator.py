"""TITLE: the mean of uploads with equal weights.

Replace this text by how the server combines uploads, and by its source. ``--aggregator FILE`` uses it. ``pfl check
FILE`` tests the laws that every aggregator satisfies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pflcli.method import Mean, Params, Stacked, Uploads


@dataclass(frozen=True)
class Config:
    """No options."""


class EqualMean:
    """The uploads of one round: they arrive in parts."""

    def __init__(self) -> None:
        self._mean = Mean()

    def add(self, stacked: Stacked, weights: NDArray[np.float64]) -> None:
        """Add the uploads (m, ...) of clients with weights (m,), their numbers of samples; 0 means none."""
        self._mean.add(stacked, (weights > 0).astype(np.float64))

    def value(self) -> Params:
        """Return the model; raises ValueError if nothing with a positive weight was added."""
        return self._mean.value()


def begin(downloaded: Params, cfg: Config) -> Uploads:
    """Return an empty collection for the uploads of clients that received ``downloaded``."""
    return EqualMean()
