"""Exact nearest neighbours by L2 distance: among the samples of a store, and among clients."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.knn import indexes

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    # Stores are mapped from files to be read. PyTorch warns of the first such array of a process, and here of no other.
    torch.from_numpy(np.frombuffer(bytes(4), np.float32))


def nearest(
    stored: NDArray[np.float32], queries: NDArray[np.float32], k: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return *squared* L2 distances (n, k) to the nearest rows of ``stored`` (m, d), and those rows; ties to the first.

    One matrix product gives |q|^2 - 2 q.x + |x|^2. Where a query is very near to a stored vector this loses its digits;
    those few distances are computed again from the difference.
    """
    x, q = torch.from_numpy(stored), torch.empty(queries.shape, dtype=torch.float32)
    # A copy, which is aligned: otherwise last bits would depend on the position of queries among other clients'.
    q.copy_(torch.from_numpy(np.ascontiguousarray(queries, dtype=np.float32)))
    sizes = torch.linalg.vecdot(x, x) + torch.linalg.vecdot(q, q)[:, None]  # (n, m)
    squared = torch.addmm(sizes, q, x.T, alpha=-2)
    if k == len(stored):
        distance, row = torch.sort(squared, dim=1, stable=True)
        tied = torch.zeros(len(q), dtype=torch.bool)
    else:
        distance, row = torch.topk(squared, k, largest=False)
        tied = (squared <= distance[:, -1:]).sum(dim=1) > k
    if tied.any():
        ordered, rows = torch.sort(squared[tied], dim=1, stable=True)
        distance[tied], row[tied] = ordered[:, :k], rows[:, :k]
    inexact = distance < _INEXACT * sizes.gather(1, row)
    if inexact.any():
        query, rank = torch.nonzero(inexact, as_tuple=True)
        distance[query, rank] = (q[query] - x[row[query, rank]]).square().sum(dim=1)
        reordered = inexact.any(dim=1)
        rows, order = torch.sort(row[reordered], dim=1)
        distance[reordered], order = torch.sort(distance[reordered].gather(1, order), dim=1, stable=True)
        row[reordered] = rows.gather(1, order)
    return distance.double().numpy(), row.numpy()


_INEXACT = 1e-3
"""Share of |q|^2 + |x|^2 below which a distance has fewer than four exact digits."""


def nearest_others(
    candidates: NDArray[np.int64],
    stored: NDArray[np.float32],
    clients: NDArray[np.int64],
    z: NDArray[np.float32],
    k: int,
) -> NDArray[np.int64]:
    """Return the nearest ``candidates`` (m,) of each of ``clients`` (n,), ids (n, k), without the client itself.

    Distance is L2 between ``stored`` (m, d) and ``z`` (n, d); the search is exact. Missing neighbours are -1.
    """
    faiss = indexes.faiss()
    index = faiss.IndexFlatL2(z.shape[1])
    index.add(np.ascontiguousarray(stored, dtype=np.float32))
    row = index.search(np.ascontiguousarray(z, dtype=np.float32), k + 1)[1]
    return without_self(np.where(row >= 0, np.append(candidates, -1)[row], -1), clients, k)


def without_self(ids: NDArray[np.int64], clients: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """Return the first k of each row of ``ids`` (n, > k), without -1 and the row's own client; -1 if missing."""
    other = (ids >= 0) & (ids != clients[:, None])
    order = np.argsort(~other, axis=1, kind="stable")[:, :k]
    return np.where(np.take_along_axis(other, order, axis=1), np.take_along_axis(ids, order, axis=1), -1)
