"""What is done to features once it is known who trains on which samples: missing values filled in, and one scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scale:
    """The ``mean`` and deviation ``sd`` (d,) by which features are standardized; a deviation of 0 is of a constant."""

    mean: Floats
    sd: Floats

    @classmethod
    def of(cls, known: Floats, numeric: NDArray[np.bool_]) -> Scale:
        """Return the scale of values (n, d), n above 0; features that are not ``numeric`` (d,) stay as they are."""
        mean, sd = known.mean(axis=0), known.std(axis=0)
        # The deviation of a constant is not 0 but what rounding leaves of it.
        constant = (known.max(axis=0) == known.min(axis=0)) | (sd == 0)
        sd = np.where(constant, 0.0, sd)
        return cls(np.where(numeric, mean, 0.0), np.where(numeric, sd, 1.0))

    def standardized(self, x: Floats) -> Floats:
        """Return features (n, ..., d) at mean 0 and deviation 1; constants become 0."""
        return np.asarray(np.where(self.sd == 0, 0.0, (x - self.mean) / np.where(self.sd == 0, 1.0, self.sd)))


@dataclass(frozen=True)
class Scaling:
    """What a dataset's features still want: ``fill`` puts medians in place of NaN, ``standardize`` follows it.

    ``by_client`` standardizes the features of each client by its own training samples. ``numeric`` (d,) are the
    features that this is for: those of 0 and 1 that stand for words stay as they are, 0 where the word is missing.
    ``scale``, that of each client by its name in ``scales``, and ``median`` (d,) are taken as they are if given, as for
    data that are to be read as others were, and else computed from training samples.
    """

    standardize: bool
    fill: bool
    numeric: NDArray[np.bool_]
    scale: Scale | None = None
    median: Floats | None = None
    by_client: bool = False
    scales: Mapping[str, Scale] = field(default_factory=dict)


def filled(x: Floats, train: NDArray[np.int64], wish: Scaling) -> tuple[Floats, Floats | None]:
    """Return features (n, ..., d) without a gap and their medians (d,), by the ``train`` rows alone.

    A feature without any value in training has the median 0. Without ``fill`` there is nothing to do, and no median.
    """
    if not wish.fill:
        return x, wish.median
    median = wish.median
    if median is None:
        median = np.where(wish.numeric, _medians(rows_of(x, train)), 0.0)
    return np.where(np.isnan(x), median, x), median


def rows_of(x: Floats, rows: NDArray[np.int64]) -> Floats:
    """Return the values (n, d) of some samples; the steps of series follow each other."""
    return np.asarray(x[rows].reshape(-1, x.shape[-1]), dtype=np.float64)


def _medians(known: Floats) -> Floats:
    """Return the median (d,) of each feature's values, 0 where it has none."""
    empty = np.isnan(known).all(axis=0)
    medians: Floats = np.nanmedian(np.where(empty, 0.0, known), axis=0)
    return medians
