"""Cross-fitting: what a client chooses for a validation sample, it chooses without this sample.

A client that chooses an option by its validation samples, such as lambda of kNN-Per, predicts them better than other
samples. Its validation samples are therefore divided into folds, and those of a fold are predicted with the choice that
the client makes by the others (Stone, 1974, https://doi.org/10.1111/j.2517-6161.1974.tb00994.x). Test samples are
predicted with the choice by all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

FOLDS = 5
"""Number of folds; each of a client's samples is a fold if there are no more than these."""


@dataclass(frozen=True)
class Folds:
    """The folds of n samples of m clients: ``owner`` (n,), and ``number`` (n,), -1 for samples that are in no fold."""

    owner: NDArray[np.int64]
    number: NDArray[np.int64]
    clients: int

    @classmethod
    def divide(cls, offsets: NDArray[np.int64]) -> Self:
        """Divide the samples of each client, ``offsets`` (m + 1,): its first into fold 0, its second into fold 1."""
        owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        return cls(owner, (np.arange(len(owner)) - np.asarray(offsets)[owner]) % FOLDS, len(offsets) - 1)

    def sum(self, values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the sums of each client's ``values`` (n, ...), (m, ...), and those without each fold, (m, FOLDS, ...).

        Samples that are in no fold are in all sums.
        """
        sums = np.zeros((self.clients, FOLDS + 1, *values.shape[1:]), values.dtype)
        np.add.at(sums, (self.owner, self.number), values)
        total = sums.sum(axis=1)
        return total, total[:, None] - sums[:, :FOLDS]

    def pick(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the value of each sample's fold, (n, ...), among those of all folds, ``values`` (m, FOLDS, ...)."""
        return values[self.owner, self.number]


def same_in_all(values: NDArray[Any]) -> NDArray[Any]:
    """Return a value of each client (m, ...), for each of its folds, (m, FOLDS, ...)."""
    return np.repeat(values[:, None], FOLDS, axis=1)


def per_sample(split: str, offsets: NDArray[np.int64], chosen: NDArray[Any], apart: NDArray[Any]) -> NDArray[Any]:
    """Return the choice with which each sample of a split is predicted, (n,): for a validation sample, one without it.

    ``chosen`` (m,) are the clients' choices by all their samples, ``apart`` (m, FOLDS) those without each fold.
    """
    if split == "validation":
        return Folds.divide(offsets).pick(apart)
    return np.repeat(chosen, np.diff(offsets), axis=0)
