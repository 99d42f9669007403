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


def count_classes(p: Array, y: Array, owner: Array, clients: int) -> NDArray[np.int64]:
    """Return numbers of labels, predictions and right predictions by class, (m, 3, C), for clients ``owner`` (n,)."""
    guess, classes = p.argmax(axis=1), p.shape[1]
    right = guess == y
    kinds = ((owner, y), (owner, guess), (owner[right], y[right]))
    counts = [np.bincount(who * classes + of, minlength=clients * classes) for who, of in kinds]
    return np.stack(counts).reshape(3, clients, classes).transpose(1, 0, 2)


def average_precisions(labels: Array, predicted: Array, hits: Array) -> float:
    """Return the mean precision over the classes that occur, from the numbers (C,) of ``count_classes``, or nan."""
    occurs = (predicted > 0) | (labels > 0)
    return float(np.mean(hits[occurs] / np.maximum(predicted[occurs], 1))) if occurs.any() else math.nan


def macro_precision(p: Array, y: Array) -> float:
    """Return the mean precision over the classes that occur among labels or predictions; nan without samples.

    A class that is never predicted has precision 0.
    """
    return average_precisions(*count_classes(p, y, np.zeros_like(y), 1)[0])


def calibration_gaps(p: Array, y: Array, owner: Array, clients: int, bins: int = 15) -> NDArray[np.float64]:
    """Return the sums of confidence minus right predictions, (m, bins), by client and equal-width bin of confidence."""
    confidence = p.max(axis=1).astype(np.float64)
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    weights = confidence - correct(p, y)
    gaps = np.bincount(owner * bins + place, weights=weights, minlength=clients * bins)
    return gaps.astype(np.float64).reshape(clients, bins)


def calibration_error(p: Array, y: Array, bins: int = 15) -> float:
    """Return the expected calibration error over equal-width bins (Guo et al., 2017); nan without samples."""
    return float(np.abs(calibration_gaps(p, y, np.zeros_like(y), 1, bins)).sum() / len(y)) if len(y) else math.nan


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
