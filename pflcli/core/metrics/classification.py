"""Scores for two classes and for imbalanced classes, from probabilities (n, C) and labels (n,).

The definitions are those of scikit-learn; tests compare the results. They are computed here because a call of
scikit-learn takes about 3 ms, mostly for input checks, and scores are computed for every client. Of two classes the
second is the positive one, unless ``positive`` is 0. A score that is undefined, because samples of a class are missing,
is nan.

For more than two classes, AUROC and average precision are macro averages of one-versus-rest scores over the classes
that occur among the labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core import scores

Array = NDArray[Any]


def auroc(p: Array, y: Array) -> float:
    """Return the area under the ROC curve; nan if fewer than two classes occur.

    It is the probability that a random sample of the class has a higher predicted probability than a random sample of
    another class; ties count half (Hanley & McNeil, 1982, https://doi.org/10.1148/radiology.143.1.7063747).
    """
    return _one_versus_rest(_auroc, p, y)


def average_precision(p: Array, y: Array, positive: int = 1) -> float:
    """Return the sum over thresholds of precision times increase in recall; nan if fewer than two classes occur.

    Samples with the same probability share one threshold, without interpolation.
    """
    return _one_versus_rest(_average_precision, p, y, positive)


def f1(p: Array, y: Array) -> float:
    """Return the mean over classes of 2 TP / (2 TP + FP + FN); nan if fewer than two classes occur among the labels.

    Classes are those that occur among labels or predictions.
    """
    counts, predicted, hits = scores.count_classes(p, y, np.zeros_like(y), 1)[0]
    occurs = (counts > 0) | (predicted > 0)
    both = 2 * hits[occurs] / (counts + predicted)[occurs]
    return float(both.mean()) if (counts > 0).sum() > 1 else math.nan


def balanced_accuracy(p: Array, y: Array) -> float:
    """Return the mean recall, TP / (TP + FN), over the classes that occur; nan if fewer than two occur."""
    counts, _, hits = scores.count_classes(p, y, np.zeros_like(y), 1)[0]
    occurs = counts > 0
    return float((hits[occurs] / counts[occurs]).mean()) if occurs.sum() > 1 else math.nan


def sensitivity(p: Array, y: Array, positive: int = 1) -> float:
    """Return the fraction of the samples of the positive class that are recognized; nan if there are none."""
    return _recall(p, y, positive)


def specificity(p: Array, y: Array, positive: int = 1) -> float:
    """Return the fraction of the samples of the negative class that are recognized; nan if there are none."""
    return _recall(p, y, 1 - positive)


def brier_score(p: Array, y: Array) -> NDArray[np.float64]:
    """Return the squared error (n,) of the probabilities: from 0 to 1 for two classes, from 0 to 2 for more.

    For two classes it is the error of the positive class, for more the sum over all classes (Brier, 1950,
    https://doi.org/10.1175/1520-0493(1950)078%3C0001:VOFEIT%3E2.0.CO;2).
    """
    error = p.astype(np.float64)
    error[np.arange(len(y)), y] -= 1
    squares = error**2
    return np.asarray(squares[:, 1] if p.shape[1] == 2 else squares.sum(axis=1), np.float64)


def _one_versus_rest(score: Callable[[Array, Array], float], p: Array, y: Array, positive: int = 1) -> float:
    """Return the mean over classes of ``score``, a function of class membership (n,) and probabilities (n,).

    For two classes it is the score of the ``positive`` one.
    """
    present = np.unique(y)
    if len(present) < 2:
        return math.nan
    classes = [positive] if p.shape[1] == 2 else present
    return float(np.mean([score(y == c, p[:, c]) for c in classes]))


def _auroc(positive: Array, probability: Array) -> float:
    _, place, counts = np.unique(probability, return_inverse=True, return_counts=True)
    rank = np.cumsum(counts) - (counts - 1) / 2  # ties get their mean rank, counted from 1
    n = int(positive.sum())
    return float((rank[place][positive].sum() - n * (n + 1) / 2) / (n * (len(positive) - n)))


def _average_precision(positive: Array, probability: Array) -> float:
    order = np.argsort(-probability, kind="stable")
    sorted_by = probability[order]
    is_last = np.append(sorted_by[1:] != sorted_by[:-1], True)  # the last one of ties
    hits = np.cumsum(positive[order])[is_last]
    precision = hits / (np.flatnonzero(is_last) + 1)
    return float((np.diff(hits, prepend=0) * precision).sum() / hits[-1])


def _recall(p: Array, y: Array, label: int) -> float:
    own = y == label
    return float((p[own].argmax(axis=1) == label).mean()) if own.any() else math.nan
