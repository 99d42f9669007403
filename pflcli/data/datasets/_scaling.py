"""Fills in missing values and standardizes features by training samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scale:
    """The ``mean`` and standard deviation ``sd`` (d,) of features; a deviation of 0 marks a constant feature."""

    mean: Floats
    sd: Floats

    @classmethod
    def fit(cls, known: Floats, numeric: NDArray[np.bool_]) -> Scale:
        """Return the scale of values (n, d), n > 0; features not ``numeric`` (d,) get mean 0 and deviation 1."""
        mean, sd = known.mean(axis=0), known.std(axis=0)
        # Rounding can leave a constant feature with a deviation that is not 0.
        constant = (known.max(axis=0) == known.min(axis=0)) | (sd == 0)
        sd = np.where(constant, 0.0, sd)
        return cls(np.where(numeric, mean, 0.0), np.where(numeric, sd, 1.0))

    def standardize(self, x: Floats) -> Floats:
        """Return features (n, ..., d) with mean 0 and deviation 1; constants become 0."""
        return np.asarray(np.where(self.sd == 0, 0.0, (x - self.mean) / np.where(self.sd == 0, 1.0, self.sd)))


@dataclass(frozen=True)
class Scaling:
    """The scaling that a dataset's features need: ``fill`` replaces NaN by medians, then ``standardize`` follows.

    ``by_client`` standardizes the features of each client by its own training samples. ``numeric`` (d,) marks the
    features to scale: 0/1 features of words are not scaled, and are 0 if the word is missing. ``scale``, ``scales``
    (by client name) and ``median`` (d,) are used if they are given, for data that are preprocessed like earlier data,
    and are otherwise computed from training samples.
    """

    standardize: bool
    fill: bool
    numeric: NDArray[np.bool_]
    scale: Scale | None = None
    median: Floats | None = None
    by_client: bool = False
    scales: Mapping[str, Scale] = field(default_factory=dict)


def fill_gaps(x: Floats, train: NDArray[np.int64], wish: Scaling) -> tuple[Floats, Floats | None]:
    """Return features (n, ..., d) with medians in place of NaN, and the medians (d,) of the ``train`` rows.

    A feature without a training value has the median 0. Without ``fill``, the features are returned unchanged.
    """
    if not wish.fill:
        return x, wish.median
    median = wish.median
    if median is None:
        median = np.where(wish.numeric, _medians(rows_of(x, train)), 0.0)
    return np.where(np.isnan(x), median, x), median


def rows_of(x: Floats, rows: NDArray[np.int64]) -> Floats:
    """Return the values (n, d) of some samples; each step of a series is a row."""
    return np.asarray(x[rows].reshape(-1, x.shape[-1]), dtype=np.float64)


def _medians(known: Floats) -> Floats:
    """Return the median (d,) of each feature, 0 if it has no value."""
    empty = np.isnan(known).all(axis=0)
    medians: Floats = np.nanmedian(np.where(empty, 0.0, known), axis=0)
    return medians
