"""Exact nearest neighbours by L2 distance, computed by FAISS: among the samples of a store, and among clients."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pflcli.knn import indexes


def nearest(
    stored: NDArray[np.float32], queries: NDArray[np.float32], k: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the *squared* L2 distances (n, k) to the nearest rows of ``stored`` (m, d), and those rows, (n, k).

    Of equally near rows the first comes first. A query that is not finite has no neighbours: its rows are -1.
    """
    stored, queries = (np.ascontiguousarray(array, dtype=np.float32) for array in (stored, queries))
    distance, row = indexes.faiss().knn(queries, stored, k)
    return distance, row


def nearest_others(
    candidates: NDArray[np.int64],
    stored: NDArray[np.float32],
    clients: NDArray[np.int64],
    z: NDArray[np.float32],
    k: int,
) -> NDArray[np.int64]:
    """Return the ids (n, k) of the ``candidates`` (m,) nearest to each of ``clients`` (n,), without the client itself.

    The distance is L2 between ``stored`` (m, d) and ``z`` (n, d). Missing neighbours are -1.
    """
    row = nearest(stored, z, k + 1)[1]
    return without_self(np.where(row >= 0, np.append(candidates, -1)[row], -1), clients, k)


def without_self(ids: NDArray[np.int64], clients: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """Return the first k ids of each row of ``ids`` (n, > k) without -1 and without the row's client; -1 if missing."""
    other = (ids >= 0) & (ids != clients[:, None])
    order = np.argsort(~other, axis=1, kind="stable")[:, :k]
    return np.where(np.take_along_axis(other, order, axis=1), np.take_along_axis(ids, order, axis=1), -1)
