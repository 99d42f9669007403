"""Evaluates kNN-Per for a grid of numbers of neighbours, kernel scales, capacities and lambdas by one search.

Stores of smaller capacity are subsets of larger ones. The neighbours in a smaller store are thus those in the largest,
without the rows that the smaller does not keep: no index is built twice and no model evaluated twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pflcli.knn.exact import nearest

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Ranked:
    """All stored samples of one client by distance to each query: ``distance`` (n, m), ``row`` and ``label`` (n, m)."""

    distance: Array
    row: NDArray[np.int64]
    label: NDArray[np.int64]

    @classmethod
    def of(cls, stored: NDArray[np.float32], y: NDArray[np.int64], queries: NDArray[np.float32]) -> Ranked:
        """Rank ``stored`` (m, d) with labels ``y`` (m,) for ``queries`` (n, d)."""
        squared, row = nearest(stored, queries, len(stored))
        return cls(np.sqrt(np.maximum(squared, 0).astype(np.float64)), row, y[row])

    def within(self, mask: NDArray[np.bool_], k: int) -> tuple[Array, NDArray[np.int64]]:
        """Return distances and labels (n, k) of the nearest rows in ``mask`` (m,); missing ones are inf and -1."""
        n, count = len(self.row), int(mask.sum())
        depth = min(k, count)
        distance, label = np.full((n, k), np.inf), np.full((n, k), -1)
        if depth:
            # Each query keeps the same number of rows, so the kept positions form a table.
            positions = np.flatnonzero(mask[self.row]).reshape(n, count)[:, :depth]
            distance[:, :depth] = self.distance.ravel()[positions]
            label[:, :depth] = self.label.ravel()[positions]
        return distance, label

    def votes(self, mask: NDArray[np.bool_], ks: Sequence[int], sigmas: Sequence[float], classes: int) -> Array:
        """Return p_kNN (c, k, s, n, C) for stores that keep the rows in ``mask`` (c, m); zeros where a store is empty.

        kNN-Per, Eq. 6, Euclidean kernel, for every number of neighbours ``ks`` and every kernel scale ``sigmas``.
        """
        ks = [min(k, max(1, mask.shape[1])) for k in ks]  # a store has no further neighbours that could vote
        depth = max(ks)
        distance, label = (np.stack(part) for part in zip(*(self.within(rows, depth) for rows in mask), strict=True))
        nearest_of_all = distance[..., :1]  # (c, n, 1)
        extra = distance - np.where(np.isfinite(nearest_of_all), nearest_of_all, 0)
        p = np.zeros((len(mask), len(ks), len(sigmas), distance.shape[1], classes))
        for scale, sigma in enumerate(sigmas):
            weight = np.exp(-extra / sigma)
            total = weight.cumsum(axis=2)
            votes = np.zeros((*label.shape[:2], classes + 1))
            flat = votes.reshape(-1, classes + 1)
            # The additional last class takes missing labels. One neighbour per row at a time: no cell is hit twice.
            for column in range(depth):
                flat[np.arange(len(flat)), label[..., column].ravel()] += weight[..., column].ravel()
                for index in (index for index, k in enumerate(ks) if k == column + 1):
                    so_far = total[..., column, None]
                    np.divide(votes[..., :classes], so_far, out=p[:, index, scale], where=so_far > 0)
        return p


def correct(knn: Array, model: Array, y: NDArray[np.int64], lambdas: Array) -> NDArray[np.int64]:
    """Return how many samples are predicted correctly, (c, l).

    ``knn`` (c, n, C) and ``model`` (n, C) are probabilities, ``lambdas`` (l,) sorted. Every class that
    (1 - lambda) model + lambda knn must beat is beaten on one side of one lambda. A sample is thus correct on an
    interval of lambdas, whose two ends suffice. Without votes the global model predicts alone. Of equal classes the
    first is predicted.
    """
    return correct_by_client(knn, model, y, np.asarray([0, len(y)]), lambdas)[:, 0]


def correct_by_client(
    knn: Array, model: Array, y: NDArray[np.int64], bounds: NDArray[np.int64], lambdas: Array
) -> NDArray[np.int64]:
    """Return how many samples of each client are predicted correctly, (c, m, l), see ``correct``.

    The rows of client i lie between ``bounds[i]`` and ``bounds[i + 1]``.
    """
    change = np.zeros((len(knn), len(bounds) - 1, len(lambdas) + 1), dtype=np.int64)
    client = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    step = max(1, _CELLS // max(len(knn) * model.shape[1], 1))
    for row in range(0, len(y), step):
        span = slice(row, row + step)
        votes, rest = knn[:, span], model[span]
        first, last = _interval(np.where(votes.sum(axis=2, keepdims=True) > 0, votes, rest), rest, y[span])
        start, stop = np.searchsorted(lambdas, first, "left"), np.searchsorted(lambdas, last, "right")
        table = np.broadcast_to(np.arange(len(knn))[:, None], start.shape)
        of = np.broadcast_to(client[span], start.shape)
        nonempty = start < stop
        np.add.at(change, (table[nonempty], of[nonempty], start[nonempty]), 1)
        np.add.at(change, (table[nonempty], of[nonempty], stop[nonempty]), -1)
    return change.cumsum(axis=2)[..., :-1]


def _interval(knn: Array, model: Array, y: NDArray[np.int64]) -> tuple[Array, Array]:
    """Return the first and last lambda (c, n) at which each sample is correct; the first is larger if there is none."""
    label = y[:, None]
    lead = np.take_along_axis(model, label, 1) - model  # (n, C), of the true class, at lambda = 0
    votes = np.take_along_axis(knn, np.broadcast_to(label, (len(knn), *label.shape)), 2) - knn
    slope = votes - lead  # (c, n, C)
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = -lead / slope
    # An earlier class wins a tie, so it must be beaten strictly.
    strict = np.arange(model.shape[1]) < label
    never = np.where(slope == 0, (lead < 0) | (strict & (lead == 0)), False)
    never[:, np.arange(len(y)), y] = False
    first = np.where(slope > 0, np.where(strict, np.nextafter(crossing, np.inf), crossing), -np.inf).max(axis=2)
    last = np.where(slope < 0, np.where(strict, np.nextafter(crossing, -np.inf), crossing), np.inf).min(axis=2)
    return np.where(never.any(axis=2), np.inf, first), last


def accuracy(knn: Array, model: Array, y: NDArray[np.int64], bounds: NDArray[np.int64], lambdas: Array) -> Array:
    """Return the accuracy (l, m) of each client, whose rows of ``knn`` and ``model`` (n, C) lie between ``bounds``."""
    counts = [correct(knn[None, a:b], model[a:b], y[a:b], lambdas)[0] / max(b - a, 1) for a, b in pairwise(bounds)]
    return np.where(np.diff(bounds) > 0, np.stack(counts, axis=1), np.nan)


def tuned(lambdas: Array, right: NDArray[np.int64]) -> Array:
    """Return the lambda (...) with the most correct predictions ``right`` (..., l); ties go to the one nearest 1/2.

    Of two equally near ones it is the smaller. Distances to 1/2 are those of decimal numbers: in binary fractions
    0.7 - 0.5 < 0.5 - 0.3. Few validation samples leave many ties, and no samples leave only ties. Breaking them by
    log-loss, or towards 0 or 1, gave lower accuracy and a lower bottom decile on other writers than the embedded ones.
    """
    distance = [abs(Decimal(str(value)) - Decimal("0.5")) for value in lambdas.tolist()]
    order = np.asarray(sorted(range(len(lambdas)), key=lambda index: (distance[index], lambdas[index])))
    return np.asarray(lambdas[order][right[..., order].argmax(axis=-1)])


@dataclass(frozen=True)
class Sample:
    """Samples of one client: ``z`` (n, d), the global model's probabilities ``model`` (n, C), labels ``y`` (n,)."""

    z: NDArray[np.float32]
    model: Array
    y: NDArray[np.int64]


def right(
    stored: NDArray[np.float32],
    y: NDArray[np.int64],
    mask: NDArray[np.bool_],
    queries: Sample,
    ks: Sequence[int],
    sigmas: Sequence[float],
    lambdas: Array,
) -> NDArray[np.int64]:
    """Return how many of the ``queries`` are predicted correctly, (c, k, s, l), see ``Ranked`` and ``correct``.

    ``stored`` (m, d) with labels ``y`` (m,) are all samples of a client, of which stores keep those in ``mask`` (c, m).
    """
    shape = (len(mask), len(ks), len(sigmas), len(lambdas))
    total = np.zeros(shape, dtype=np.int64)
    step = max(1, _CELLS // max(len(stored), 1))
    for first in range(0, len(queries.y), step):
        span = slice(first, first + step)
        model = queries.model[span]
        knn = Ranked.of(stored, y, queries.z[span]).votes(mask, ks, sigmas, model.shape[1])
        total += correct(knn.reshape(-1, *model.shape), model, queries.y[span], lambdas).reshape(shape)
    return total


_CELLS = 2_000_000
"""Queries times stored samples that are ranked at a time: bounds the memory of a thread to some 100 MB."""
