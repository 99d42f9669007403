"""Scores of the predictions of one run: per sample, per client and over clients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def per_client(values: Array, offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the mean of ``values`` (n,) over each client's rows, (m,); nan for a client without rows."""
    sums = np.add.reduceat(np.append(values.astype(np.float64), 0.0), offsets[:-1]) if len(offsets) > 1 else np.zeros(0)
    return ratio(sums, np.diff(offsets))


def ratio(counts: Array, sizes: Array) -> NDArray[np.float64]:
    """Return ``counts`` / ``sizes``, (m,) each; nan for a client of size 0."""
    means = np.full(len(sizes), np.nan)
    np.divide(counts, sizes, out=means, where=sizes > 0)
    return means


def correct(p: Array, y: Array) -> NDArray[np.bool_]:
    """Return whether the most probable class is the label, (n,); ties go to the lower class."""
    right: NDArray[np.bool_] = p.argmax(axis=1) == y
    return right


def log_loss(p: Array, y: Array) -> NDArray[np.float64]:
    """Return -ln p(label) in nats, (n,); probabilities below 1e-12 are raised to 1e-12."""
    chosen = np.take_along_axis(p, y[:, None], axis=1)[:, 0].astype(np.float64)
    return -np.log(np.maximum(chosen, 1e-12))


def macro_precision(p: Array, y: Array) -> float:
    """Return the mean precision over the classes that occur among labels or predictions; nan without samples.

    A class that is never predicted has precision 0.
    """
    if len(y) == 0:
        return math.nan
    guess = p.argmax(axis=1)
    classes = p.shape[1]
    predicted = np.bincount(guess, minlength=classes)
    hits = np.bincount(guess[guess == y], minlength=classes)
    occurs = (predicted > 0) | (np.bincount(y, minlength=classes) > 0)
    return float(np.mean(hits[occurs] / np.maximum(predicted[occurs], 1)))


def calibration_error(p: Array, y: Array, bins: int = 15) -> float:
    """Return the expected calibration error over equal-width bins (Guo et al., 2017); nan without samples."""
    if len(y) == 0:
        return math.nan
    confidence = p.max(axis=1).astype(np.float64)
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    gap = np.bincount(place, weights=confidence - correct(p, y), minlength=bins)
    return float(np.abs(gap).sum() / len(y))


def bottom_decile(accuracy: Array) -> float:
    """Return the ceil(m / 10)-th worst accuracy of m clients (kNN-Per, section 6); nan values are left out."""
    known = np.sort(accuracy[~np.isnan(accuracy)])
    return float(known[math.ceil(len(known) / 10) - 1]) if len(known) else math.nan


def weighted_mean(values: Array, weights: Array) -> float:
    """Return the mean of ``values`` (m,) weighted by ``weights`` (m,); nan values are left out."""
    known = ~np.isnan(values) & (weights > 0)
    return float(np.average(values[known], weights=weights[known])) if known.any() else math.nan


def mean(values: Array, n: Array) -> float:
    """Return the mean over clients with a score."""
    return float(np.nanmean(values))


def lowest_decile(values: Array, n: Array) -> float:
    """Return the (m / 10)-th lowest score."""
    return bottom_decile(values)


def lowest(values: Array, n: Array) -> float:
    """Return the lowest score."""
    return float(np.nanmin(values))


def highest_decile(values: Array, n: Array) -> float:
    """Return the (m / 10)-th highest score."""
    return -bottom_decile(-values)


def highest(values: Array, n: Array) -> float:
    """Return the highest score."""
    return float(np.nanmax(values))


def deviation(values: Array, n: Array) -> float:
    """Return the standard deviation over clients with a score."""
    return float(np.nanstd(values))


def gain_per_doubling(rounds: Array, values: Array, least: int) -> tuple[float, float] | None:
    """Return the slope of a line through ``values`` (n,) over log2(round), and its standard error.

    Scores rise like the logarithm of the number of rounds, so that this is what twice as many rounds gain. The line is
    fitted from a quarter of the rounds on; None if there are fewer than ``least`` values there, of at least three.
    """
    late = rounds >= rounds.max(initial=0) / 4
    if late.sum() < max(least, 3):
        return None
    x, y = np.log2(rounds[late]), values[late] - values[late].mean()
    x -= x.mean()
    slope = float(x @ y / (x @ x))
    residual = y - slope * x
    return slope, math.sqrt(float(residual @ residual) / (len(x) - 2) / float(x @ x))
