"""Groups clients by points: k-means, mean-shift or nearest neighbours."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_RESTARTS = 10
"""Number of k-means runs, of which the best is taken."""

_QUANTILE = 0.3
"""Average share of the other points that are within the bandwidth of mean-shift."""


def select_nearest(points: NDArray[np.float64], k: int) -> NDArray[np.bool_]:
    """Return a mask (n, n) of the points (n, d) that each client receives: its own, and 1/k of the others by cosine.

    The number is rounded up; of equal cosines the first are taken.
    """
    length = np.linalg.norm(points, axis=1, keepdims=True)
    unit = np.divide(points, length, out=np.zeros_like(points), where=length > 0)
    cosine = unit @ unit.T
    np.fill_diagonal(cosine, np.inf)
    first = np.argsort(-cosine, axis=1, kind="stable")[:, : 1 + math.ceil((len(points) - 1) / k)]
    received = np.zeros(cosine.shape, dtype=bool)
    np.put_along_axis(received, first, True, axis=1)
    return received


def group_clients(
    points: NDArray[np.float64], positions: NDArray[np.int64], how: str, k: int, rng: np.random.Generator
) -> list[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    """Group the clients at ``positions`` (q,) among the points (n, d) by the points that they receive.

    Returns, for each group, the indices of its members in ``positions`` and a mask (n,) of the points. A client
    receives the points that ``select_nearest`` returns, or those of its ``cluster``. Groups are in the order of their
    first members.
    """
    if how == "nearest":
        return group_equal_rows(select_nearest(points, k)[positions])
    label = cluster(points, how, k, rng)
    return [(np.flatnonzero(label[positions] == c), label == c) for c in dict.fromkeys(label[positions].tolist())]


def group_equal_rows(rows: NDArray[np.bool_]) -> list[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    """Return the indices and the content (n,) of each distinct row of (q, n), in the order of their first indices."""
    distinct, first, group = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return [(np.flatnonzero(group.reshape(-1) == index), distinct[index]) for index in np.argsort(first)]


def cluster(points: NDArray[np.float64], how: str, k: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the cluster (n,) of each point (n, d), by ``k-means`` into at most k clusters, or by ``mean-shift``.

    Clusters are numbered in the order of their first points. There are fewer than k if points are equal.
    """
    if how == "k-means" and k == 1:
        return np.zeros(len(points), dtype=np.int64)
    import warnings

    from sklearn.cluster import KMeans, MeanShift
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.metrics import pairwise_distances
    from threadpoolctl import threadpool_limits

    # One thread: sums have one order, and points are few.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than clusters
        if how == "k-means":
            draw = int(rng.integers(2**32))
            label = KMeans(min(k, len(points)), n_init=_RESTARTS, random_state=draw).fit_predict(points)
        elif (width := _mean_shift_bandwidth(pairwise_distances(points))) > 0:
            label = MeanShift(bandwidth=width).fit_predict(points)
        else:  # so many points are equal that the bandwidth is 0
            label = np.unique(points, axis=0, return_inverse=True)[1].reshape(-1)
    _, first, cluster = np.unique(label, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[cluster.reshape(-1)], dtype=np.int64)


def _mean_shift_bandwidth(distance: NDArray[np.float64]) -> float:
    """Return the bandwidth of mean-shift for points at pairwise ``distance`` (n, n)."""
    if len(distance) < 2:
        return 0.0
    nearest = max(1, round(_QUANTILE * (len(distance) - 1)))
    return float(np.sort(distance, axis=1)[:, nearest].mean())
