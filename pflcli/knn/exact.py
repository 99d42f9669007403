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

_ONEDNN = bool(torch._C._has_mkldnn) and hasattr(torch.ops.mkldnn, "_linear_pointwise")
_LARGE = 1 << 23
"""Multiplications from which a product goes by oneDNN."""
INEXACT = 1e-3
"""Share of |q|^2 + |x|^2 below which a distance has fewer than four exact digits."""
_CELLS = 1 << 16
"""Distances that are ordered at a time: they stay in the cache."""
_TILE = 16
"""Stored vectors that MKL multiplies alike: equal ones behind the last such tile would differ in their last bits."""
_COPIED = 1 << 24
"""Numbers of stored vectors that are copied at a time: stores may be larger than memory."""


def nearest(
    stored: NDArray[np.float32], queries: NDArray[np.float32], k: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return *squared* L2 distances (n, k) to the nearest rows of ``stored`` (m, d), and those rows; ties to the first.

    A distance is |q|^2 - 2 (q.x - |x|^2 / 2), the bracket from one matrix product. Where a query is very near to a
    stored vector this loses its digits; those few distances are computed again from the difference.
    """
    q = torch.from_numpy(np.ascontiguousarray(queries, dtype=np.float32))
    sizes, nearness = _nearness(stored, q)
    query_sizes = torch.linalg.vector_norm(q, dim=1).square().numpy()[:, None]
    row = _largest(nearness, k)
    distance = query_sizes - 2 * nearness.take(row + np.arange(0, nearness.size, len(stored))[:, None])
    inexact = distance < INEXACT * (sizes[row] + query_sizes)
    if inexact.any():
        query, rank = np.nonzero(inexact)
        distance[query, rank] = np.square(queries[query] - stored[row[query, rank]]).sum(axis=1)
        reordered = inexact.any(axis=1)
        order = np.lexsort((row[reordered], distance[reordered]), axis=1)
        distance[reordered] = np.take_along_axis(distance[reordered], order, axis=1)
        row[reordered] = np.take_along_axis(row[reordered], order, axis=1)
    return distance, row


def _nearness(stored: NDArray[np.float32], q: torch.Tensor) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return |x|^2 of the rows of ``stored`` (m, d), (m,), and q.x - |x|^2 / 2 for those of ``q`` (n, d), (n, m)."""
    step = max(1, _COPIED // stored.shape[1])
    parts = []
    for first in range(0, len(stored), step):
        block = stored[first : first + step]
        if _ONEDNN and q.numel() * len(block) >= _LARGE:
            # On AMD half the time of MKL, which makes no use of AVX-512 there.
            x = _padded(torch.from_numpy(block))
            sizes = torch.linalg.vector_norm(x, dim=1).square()
            product = torch.ops.mkldnn._linear_pointwise(_padded(q), x, sizes * -0.5, "none", [], "")
        else:
            x = _aligned(block, _TILE)
            sizes = torch.linalg.vector_norm(x, dim=1).square()
            product = torch.addmm(sizes * -0.5, _aligned(q.numpy()), x.T)
        parts.append((sizes[: len(block)].numpy(), product[: len(q), : len(block)].numpy()))
    sizes_of_all, nearness = (np.concatenate(arrays, axis=-1) for arrays in zip(*parts, strict=True))
    return sizes_of_all, nearness


def _aligned(rows: NDArray[np.float32], multiple: int = 1) -> torch.Tensor:
    """Return ``rows`` (n, d) in aligned memory, with rows of zeros up to a ``multiple``; a copy if they have neither.

    Vectors in an index begin at any byte, where arithmetic is slower, and products by MKL differ in their last bits.
    """
    rows = np.ascontiguousarray(rows, dtype=np.float32)
    if rows.ctypes.data % 64 == 0 and len(rows) % multiple == 0:
        return torch.from_numpy(rows)
    copy = torch.empty(-(-len(rows) // multiple) * multiple, rows.shape[1])
    copy[: len(rows)] = torch.from_numpy(rows)
    copy[len(rows) :] = 0
    return copy


def _padded(rows: torch.Tensor) -> torch.Tensor:
    """Return a copy of ``rows`` (n, d) with rows of zeros behind them, up to one of four numbers per power of two.

    oneDNN takes a millisecond to prepare for products of another shape: clients of similar sizes share one.
    """
    step = max(8, 1 << (len(rows).bit_length() - 3))
    padded = torch.empty(-(-len(rows) // step) * step, rows.shape[1])
    padded[: len(rows)] = rows
    padded[len(rows) :] = 0
    return padded


def _largest(values: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Return the columns of the k largest of each row of ``values`` (n, m), the largest first; ties to the first.

    A value and its column are one integer, whose high bits have the order of the values: NumPy partitions and sorts
    integers without branches.
    """
    columns = np.empty((len(values), k), dtype=np.int64)
    step = max(1, _CELLS // values.shape[1])
    for first in range(0, len(values), step):
        part = slice(first, first + step)
        bits = (0 - values[part]).view(np.int32)  # 0 - 0 has no sign
        bits ^= (bits >> 31) & 0x7FFFFFFF  # a float without its sign has the order of an integer
        keys = bits.astype(np.int64)
        keys <<= 32
        keys |= np.arange(values.shape[1])
        if k < values.shape[1]:
            keys.partition(k - 1, axis=1)
            keys = keys[:, :k]
        keys.sort(axis=1)
        np.bitwise_and(keys, 0xFFFFFFFF, out=columns[part])
    return columns


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
