"""Scores kNN-Per's predictions of numbers on a grid of capacities, numbers of neighbours, kernel scales and lambdas.

Neighbours predict their mean label, or their quantiles, weighted as in ``knn-per``. Classes, of which sums of votes are
enough, have ``methods.parts.knn_grid``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.core.knn import voting
from pflcli.core.metrics.metric import Metric
from pflcli.core.tasks import Labels
from pflcli.method import Embedded, Neighbours, find_nearest
from pflcli.methods.knn_per import quantiles_by_distance

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Axes:
    """Numbers of neighbours (k,), kernel scales (s,) and lambdas (l,)."""

    ks: Sequence[int]
    sigmas: Sequence[float]
    lambdas: Array


def score_client(
    stored: Embedded, is_stored: NDArray[np.bool_], queries: Embedded, axes: Axes, metric: Metric, labels: Labels
) -> tuple[Array, Array]:
    """Return a client's metric and the sum of its ``task.scores``, (c, k, s, l) each; nan and 0 without queries.

    ``stored`` are its n training samples and ``queries`` the samples to score; the c stores have the samples in each
    row of ``is_stored`` (c, n).
    """
    task, n = labels.task(), len(queries.y)
    shape = (len(is_stored), len(axes.ks), len(axes.sigmas), len(axes.lambdas))
    if not n:
        return np.full(shape, np.nan), np.zeros(shape)
    network = task.predict(torch.from_numpy(np.asarray(queries.logits))).astype(np.float64)
    ranked = _rank(stored, queries)
    lambdas, groups = axes.lambdas[:, None, None], int(np.prod(shape[1:]))
    y, offsets = np.tile(queries.y, groups), np.arange(groups + 1) * n
    scored, total = np.zeros((len(is_stored), groups)), np.zeros((len(is_stored), groups))
    for place, mask in enumerate(is_stored):
        nearest = _select(ranked, mask, max(axes.ks))
        knn = np.stack(
            [_predict(nearest, k, sigma, network, task) for k in axes.ks for sigma in axes.sigmas]
        )  # (k s, n, C)
        p = (lambdas * knn[:, None] + (1 - lambdas) * network).reshape(-1, network.shape[1])
        scored[place] = metric.score_clients(p.astype(np.float32), y, offsets, labels)
        total[place] = task.scores(p, y).reshape(groups, n).sum(axis=1)
    return scored.reshape(shape), total.reshape(shape)


@dataclass(frozen=True)
class _Ranked:
    """Stored samples of each query, nearest first: distance, row and label, (n, m) each."""

    distance: Array
    row: NDArray[np.int64]
    label: NDArray[Any]


def _rank(stored: Embedded, queries: Embedded) -> _Ranked:
    if not len(stored.y):
        empty = np.zeros((len(queries.y), 0))
        return _Ranked(empty, empty.astype(np.int64), empty)
    squared, row = find_nearest(stored.z, queries.z, len(stored.y))
    return _Ranked(np.sqrt(np.maximum(squared, 0).astype(np.float64)), row, stored.y[row])


def _select(ranked: _Ranked, mask: NDArray[np.bool_], depth: int) -> Neighbours:
    """Return the nearest of the samples in ``mask`` (m,), at most ``depth``; a sample at inf if there are none.

    Distances are L2, not squared.
    """
    count = min(depth, int(mask.sum()))
    order = np.argsort(~mask[ranked.row], axis=1, kind="stable")[:, :count]
    distance, label = (np.take_along_axis(each, order, axis=1) for each in (ranked.distance, ranked.label))
    if not count:
        return Neighbours(np.full((len(distance), 1), np.inf), np.full((len(distance), 1), -1.0))
    return Neighbours(distance, label)


def _predict(nearest: Neighbours, k: int, sigma: float, network: Array, task: Any) -> Array:
    """Return what the k nearest samples predict, (n, C); the network's prediction without any."""
    near = Neighbours(nearest.distance[:, :k], nearest.label[:, :k])
    exponent = -near.distance / sigma
    if levels := getattr(task, "quantiles", ()):
        found = quantiles_by_distance(near, exponent, levels)
    else:
        found = voting.mean_by_distance(near, exponent)
    return np.where(np.isnan(found), network, found)
