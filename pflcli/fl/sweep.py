"""kNN-Per over whole grids from one search: numbers of neighbours, kernel scales, capacities and lambdas.

Stores of smaller capacity are the heads of larger ones, so the neighbours in each are those of the largest, with the
rows beyond its capacity passed over: no index is built twice and no model asked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pflcli.fl.neighbours import nearest

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Ranked:
    """All stored samples of one client by distance to each query: ``distance`` (n, m), ``row`` and ``label`` (n, m).

    Rows are in the order in which a store of growing capacity takes them up.
    """

    distance: Array
    row: NDArray[np.int64]
    label: NDArray[np.int64]

    @classmethod
    def of(cls, stored: NDArray[np.float32], y: NDArray[np.int64], queries: NDArray[np.float32]) -> Ranked:
        """Rank ``stored`` (m, d), in the order of its uptake, with labels ``y`` (m,) for ``queries`` (n, d)."""
        squared, row = nearest(stored, queries, len(stored))
        return cls(np.sqrt(np.maximum(squared, 0)), row, y[row])

    def within(self, capacity: int, k: int) -> tuple[Array, NDArray[np.int64]]:
        """Return distances and labels (n, k) of the nearest among the first ``capacity`` rows; inf and -1 beyond."""
        n = len(self.row)
        depth = min(k, capacity)
        distance, label = np.full((n, k), np.inf), np.full((n, k), -1)
        if depth:
            # Every query sees the same rows, so each keeps as many: what is left reshapes.
            place = np.flatnonzero(self.row < capacity).reshape(n, capacity)[:, :depth]
            distance[:, :depth] = self.distance.ravel()[place]
            label[:, :depth] = self.label.ravel()[place]
        return distance, label

    def votes(self, capacities: Sequence[int], k: int, classes: int, sigma: float = 1.0) -> Array:
        """Return p_kNN (c, n, C) for each capacity (kNN-Per, Eq. 6, Euclidean kernel); zeros where a store is empty."""
        found = [self.within(capacity, k) for capacity in capacities]
        distance, label = (np.stack(parts) for parts in zip(*found, strict=True))  # (c, n, k)
        nearest_of_all = distance[..., :1]
        weight = np.exp(-(distance - np.where(np.isfinite(nearest_of_all), nearest_of_all, 0)) / sigma)
        total = weight.sum(axis=2, keepdims=True)
        weight = np.divide(weight, total, out=np.zeros_like(weight), where=total > 0)
        p = np.zeros((*label.shape[:2], classes + 1))
        flat = p.reshape(-1, classes + 1)
        # The last class takes what has no label. One neighbour of every row at a time: no place is met twice.
        for column in range(k):
            flat[np.arange(len(flat)), label[..., column].ravel()] += weight[..., column].ravel()
        return p[..., :classes]


def correct(knn: Array, model: Array, y: NDArray[np.int64], lambdas: Array) -> NDArray[np.int64]:
    """Return how many samples are answered rightly, (c, l).

    ``knn`` (c, n, C) and ``model`` (n, C) are probabilities, ``lambdas`` (l,) sorted. Every class that
    (1 - lambda) model + lambda knn must beat is beaten on one side of one lambda, so a sample is right on an interval:
    its two ends are found, not the answers at every lambda. Where nobody votes, the global model answers alone. The
    first of equal classes is the answer.
    """
    first, last = _interval(np.where(knn.sum(axis=2, keepdims=True) > 0, knn, model), model, y)
    begin, end = np.searchsorted(lambdas, first, "left"), np.searchsorted(lambdas, last, "right")
    change = np.zeros((len(knn), len(lambdas) + 1), dtype=np.int64)
    rows = np.broadcast_to(np.arange(len(knn))[:, None], begin.shape)
    some = begin < end
    np.add.at(change, (rows[some], begin[some]), 1)
    np.add.at(change, (rows[some], end[some]), -1)
    return change.cumsum(axis=1)[:, :-1]


def _interval(knn: Array, model: Array, y: NDArray[np.int64]) -> tuple[Array, Array]:
    """Return the first and last lambda (c, n) at which each sample is answered rightly; the first is larger if none."""
    own = y[:, None]
    ahead = np.take_along_axis(model, own, 1) - model  # (n, C), of the true class, at lambda = 0
    votes = np.take_along_axis(knn, np.broadcast_to(own, (len(knn), *own.shape)), 2) - knn
    slope = votes - ahead  # (c, n, C)
    with np.errstate(divide="ignore", invalid="ignore"):
        level = -ahead / slope
    # An earlier class wins a tie, so it must be beaten strictly.
    strict = np.arange(model.shape[1]) < own
    never = np.where(slope == 0, (ahead < 0) | (strict & (ahead == 0)), False)
    never[:, np.arange(len(y)), y] = False
    first = np.where(slope > 0, np.where(strict, np.nextafter(level, np.inf), level), -np.inf).max(axis=2)
    last = np.where(slope < 0, np.where(strict, np.nextafter(level, -np.inf), level), np.inf).min(axis=2)
    return np.where(never.any(axis=2), np.inf, first), last


def accuracy(knn: Array, model: Array, y: NDArray[np.int64], bounds: NDArray[np.int64], lambdas: Array) -> Array:
    """Return the accuracy (l, m) of each client, whose rows of ``knn`` and ``model`` (n, C) lie between ``bounds``."""
    counts = [correct(knn[None, a:b], model[a:b], y[a:b], lambdas)[0] / max(b - a, 1) for a, b in pairwise(bounds)]
    return np.where(np.diff(bounds) > 0, np.stack(counts, axis=1), np.nan)
