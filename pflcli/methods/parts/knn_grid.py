"""Evaluates kNN-Per on a grid of numbers of neighbours, kernel scales, capacities and lambdas with one search.

Stores of smaller capacity are subsets of larger ones. The neighbours in a smaller store are therefore those in the
largest, without the rows that the smaller store lacks: no index is built and no model is evaluated twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pflcli.method import find_nearest

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Ranked:
    """The stored samples of each query's client, nearest first: ``distance``, ``row`` and ``label``, (n, m) each.

    ``row`` numbers the stored samples of all clients. For smaller stores, inf, -1 and -1 fill the remaining entries.
    """

    distance: Array
    row: NDArray[np.int64]
    label: NDArray[np.int64]

    @classmethod
    def rank_clients(
        cls,
        stored: NDArray[np.float32],
        y: NDArray[np.int64],
        offsets: NDArray[np.int64],
        queries: NDArray[np.float32],
        bounds: NDArray[np.int64],
    ) -> Ranked:
        """Rank the stored samples of each client for its own queries.

        Client i has the rows ``offsets[i]:offsets[i + 1]`` of ``stored`` and ``bounds[i]:bounds[i + 1]`` of
        ``queries``.
        """
        shape = len(queries), int(np.diff(offsets).max(initial=0))
        distance, row = np.full(shape, np.inf), np.full(shape, -1)
        for rows, span in zip(pairwise(offsets.tolist()), pairwise(bounds.tolist()), strict=True):
            own, own_queries = stored[slice(*rows)], queries[slice(*span)]
            if len(own) and len(own_queries):
                squared, rank = find_nearest(own, own_queries, len(own))
                distance[slice(*span), : len(own)] = np.sqrt(np.maximum(squared, 0).astype(np.float64))
                row[slice(*span), : len(own)] = rank + rows[0]
        return cls(distance, row, np.append(y, -1)[row])

    def select_nearest(self, mask: NDArray[np.bool_], k: int) -> tuple[Array, NDArray[np.int64]]:
        """Return distances and labels (n, k) of the nearest samples for which ``mask``, one entry per row, is true.

        Missing distances are inf, missing labels -1.
        """
        is_stored = np.append(mask, False)[self.row]
        count = is_stored.sum(axis=1)
        exists = np.arange(k) < count[:, None]
        nth = (count.cumsum() - count)[:, None] + np.arange(k)  # number in the flattened array
        position = np.flatnonzero(is_stored)[nth[exists]]
        distance, label = np.full(exists.shape, np.inf), np.full(exists.shape, -1)
        distance[exists], label[exists] = self.distance.ravel()[position], self.label.ravel()[position]
        return distance, label

    def compute_votes(self, mask: NDArray[np.bool_], ks: Sequence[int], sigmas: Sequence[float], classes: int) -> Array:
        """Return p_kNN (c, k, s, n, C) for stores that contain the rows in each ``mask`` (c, .); zeros if empty.

        kNN-Per, Eq. 6, with the Euclidean kernel, for each number of neighbours ``ks`` and kernel scale ``sigmas``.
        """
        ks = [min(k, max(1, self.row.shape[1])) for k in ks]
        depth = max(ks)
        distance, label = (
            np.stack(part) for part in zip(*(self.select_nearest(rows, depth) for rows in mask), strict=True)
        )
        nearest_of_all = distance[..., :1]  # (c, n, 1)
        extra = distance - np.where(np.isfinite(nearest_of_all), nearest_of_all, 0)
        p = np.zeros((len(mask), len(ks), len(sigmas), distance.shape[1], classes))
        for scale, sigma in enumerate(sigmas):
            weight = np.exp(-extra / sigma)
            total = weight.cumsum(axis=2)
            votes = np.zeros((*label.shape[:2], classes + 1))
            flat = votes.reshape(-1, classes + 1)
            # Missing labels count for an additional last class. Each step adds one neighbour per row, so that no cell
            # is indexed twice.
            for column in range(depth):
                flat[np.arange(len(flat)), label[..., column].ravel()] += weight[..., column].ravel()
                for index in (index for index, k in enumerate(ks) if k == column + 1):
                    so_far = total[..., column, None]
                    np.divide(votes[..., :classes], so_far, out=p[:, index, scale], where=so_far > 0)
        return p


def count_correct(knn: Array, model: Array, y: NDArray[np.int64], lambdas: Array) -> NDArray[np.int64]:
    """Return the number of correct predictions for each lambda, (c, l).

    ``knn`` (c, n, C) and ``model`` (n, C) are probabilities, ``lambdas`` (l,) are sorted. The probability of the true
    class in (1 - lambda) model + lambda knn exceeds that of another class on one side of a single lambda. Predictions
    are therefore correct on an interval of lambdas, whose two ends are enough. Without votes the global model predicts
    alone. Of equally probable classes the first is predicted.
    """
    return count_correct_by_client(knn, model, y, np.asarray([0, len(y)]), lambdas)[:, 0]


def count_correct_by_client(
    knn: Array, model: Array, y: NDArray[np.int64], bounds: NDArray[np.int64], lambdas: Array
) -> NDArray[np.int64]:
    """Return the number of correct predictions of each client, (c, m, l); see ``count_correct``.

    Client i has the rows ``bounds[i]:bounds[i + 1]``.
    """
    change = np.zeros((len(knn), len(bounds) - 1, len(lambdas) + 1), dtype=np.int64)
    client = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    step = max(1, _MAX_PROBABILITIES_PER_STEP // max(len(knn) * model.shape[1], 1))
    for row in range(0, len(y), step):
        span = slice(row, row + step)
        votes, rest = knn[:, span], model[span]
        first, last = _find_correct_interval(np.where(votes.sum(axis=2, keepdims=True) > 0, votes, rest), rest, y[span])
        start, stop = np.searchsorted(lambdas, first, "left"), np.searchsorted(lambdas, last, "right")
        table = np.broadcast_to(np.arange(len(knn))[:, None], start.shape)
        owner = np.broadcast_to(client[span], start.shape)
        nonempty = start < stop
        np.add.at(change, (table[nonempty], owner[nonempty], start[nonempty]), 1)
        np.add.at(change, (table[nonempty], owner[nonempty], stop[nonempty]), -1)
    return change.cumsum(axis=2)[..., :-1]


def _find_correct_interval(knn: Array, model: Array, y: NDArray[np.int64]) -> tuple[Array, Array]:
    """Return the first and last lambda (c, n) at which each prediction is correct; first > last if there is none."""
    label = y[:, None]
    lead = np.take_along_axis(model, label, 1) - model  # (n, C), of the true class, at lambda = 0
    votes = np.take_along_axis(knn, np.broadcast_to(label, (len(knn), *label.shape)), 2) - knn
    slope = votes - lead  # (c, n, C)
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = -lead / slope
    # An earlier class wins a tie, so the true class must be strictly more probable.
    strict = np.arange(model.shape[1]) < label
    never = np.where(slope == 0, (lead < 0) | (strict & (lead == 0)), False)
    never[:, np.arange(len(y)), y] = False
    first = np.where(slope > 0, np.where(strict, np.nextafter(crossing, np.inf), crossing), -np.inf).max(axis=2)
    last = np.where(slope < 0, np.where(strict, np.nextafter(crossing, -np.inf), crossing), np.inf).min(axis=2)
    return np.where(never.any(axis=2), np.inf, first), last


def choose_lambdas(lambdas: Array, correct: NDArray[np.int64]) -> Array:
    """Return the lambda (...) with the most correct predictions, given their numbers ``correct`` (..., l).

    Ties go to the lambda nearest 1/2, and of two equally near ones to the smaller. Distances to 1/2 are computed in
    decimals: in binary fractions 0.7 - 0.5 < 0.5 - 0.3. With few validation samples there are many ties. Breaking them
    by log loss, or towards 0 or 1, gave a lower accuracy and a lower 10th-percentile accuracy on writers outside the
    built-in data.
    """
    distance = [abs(Decimal(str(value)) - Decimal("0.5")) for value in lambdas.tolist()]
    order = np.asarray(sorted(range(len(lambdas)), key=lambda index: (distance[index], lambdas[index])))
    return np.asarray(lambdas[order][correct[..., order].argmax(axis=-1)])


@dataclass(frozen=True)
class Queries:
    """Samples of clients: ``z`` (n, d), the global model's probabilities ``model`` (n, C), labels ``y`` (n,).

    Client i has the rows ``bounds[i]:bounds[i + 1]``.
    """

    z: NDArray[np.float32]
    model: Array
    y: NDArray[np.int64]
    bounds: NDArray[np.int64]


def count_correct_on_grid(
    stored: NDArray[np.float32],
    y: NDArray[np.int64],
    offsets: NDArray[np.int64],
    mask: NDArray[np.bool_],
    queries: Queries,
    ks: Sequence[int],
    sigmas: Sequence[float],
    lambdas: Array,
) -> NDArray[np.int64]:
    """Return the number of correct predictions for each client's ``queries``, (m, c, k, s, l).

    ``stored`` (r, d) with labels ``y`` (r,) are the samples of all clients, split at ``offsets`` (m + 1,). The c kinds
    of stores contain the rows in ``mask`` (c, r). See ``Ranked`` and ``count_correct``.
    """
    shape = (len(mask), len(ks), len(sigmas), len(lambdas))
    total = np.zeros((len(offsets) - 1, *shape), dtype=np.int64)
    cells = len(mask) * len(ks) * len(sigmas) * queries.model.shape[1]
    for first, last, span in _group_clients(np.diff(offsets), queries.bounds, cells):
        rows = slice(offsets[first], offsets[last])
        bounds = np.clip(queries.bounds[first : last + 1], span.start, span.stop) - span.start
        ranked = Ranked.rank_clients(
            stored[rows], y[rows], offsets[first : last + 1] - rows.start, queries.z[span], bounds
        )
        model = queries.model[span]
        knn = ranked.compute_votes(mask[:, rows], ks, sigmas, model.shape[1]).reshape(np.prod(shape[:-1]), *model.shape)
        counts = count_correct_by_client(knn, model, queries.y[span], bounds, lambdas)
        total[first:last] += counts.swapaxes(0, 1).reshape(last - first, *shape)
    return total


def _group_clients(sizes: NDArray[np.int64], bounds: NDArray[np.int64], cells: int) -> Iterator[tuple[int, int, slice]]:
    """Yield ranges of clients, ``first`` to ``last``, and a span of their queries, within ``_MAX_CELLS_PER_GROUP``.

    A query takes one cell per sample of the largest store (``sizes``, (m,)), but at least ``cells``.
    """
    first = 0
    while first < len(sizes):
        last, cost = first, cells
        while last < len(sizes):
            cost = max(cost, int(sizes[last]))
            if int(bounds[last + 1] - bounds[first]) * cost > _MAX_CELLS_PER_GROUP:
                break
            last += 1
        if last > first:
            yield first, last, slice(int(bounds[first]), int(bounds[last]))
            first = last
            continue
        step, stop = max(1, _MAX_CELLS_PER_GROUP // cost), int(bounds[first + 1])
        for start in range(int(bounds[first]), stop, step):
            yield first, first + 1, slice(start, min(start + step, stop))
        first += 1


_MAX_CELLS_PER_GROUP = 2_000_000
"""Maximum number of queries times stored samples, or of votes, per group: a thread uses at most about 100 MB."""

_MAX_PROBABILITIES_PER_STEP = 100_000
"""Maximum number of probabilities per step, which fit into the cache."""
