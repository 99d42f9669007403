"""Nearest neighbours in each client's own datastore. The one place that imports FAISS, after torch.

A store holds a client's training samples first and its validation samples behind them, so one index serves both the
tuning (training rows alone) and the final answer (all rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch  # noqa: F401  (FAISS and torch each bring an OpenMP runtime; torch's must be first)
from numpy.typing import NDArray


def _faiss() -> Any:
    import faiss

    faiss.omp_set_num_threads(1)  # one thread a search: stores are small, and more threads made it slower
    return faiss


def flat_index(z: NDArray[np.float32]) -> bytes:
    """Return a serialised exact L2 index over the rows of ``z`` (n, d)."""
    faiss = _faiss()
    index = faiss.IndexFlatL2(z.shape[1])
    index.add(np.ascontiguousarray(z, dtype=np.float32))
    blob: bytes = faiss.serialize_index(index).tobytes()
    return blob


def nearest_others(
    known: NDArray[np.int64],
    stored: NDArray[np.float32],
    clients: NDArray[np.int64],
    z: NDArray[np.float32],
    k: int,
) -> NDArray[np.int64]:
    """Return the ids (n, k) of the ``known`` clients (m,) nearest to each of ``clients`` (n,), never the client itself.

    Distance is L2 between ``stored`` (m, d) and ``z`` (n, d); the search is exact. -1 stands where there are too few.
    """
    faiss = _faiss()
    index = faiss.IndexFlatL2(z.shape[1])
    index.add(np.ascontiguousarray(stored, dtype=np.float32))
    row = index.search(np.ascontiguousarray(z, dtype=np.float32), k + 1)[1]
    return others(np.where(row >= 0, np.append(known, -1)[row], -1), clients, k)


def others(found: NDArray[np.int64], clients: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """Return the first k ids in each row of ``found`` (n, > k) that are not -1 or the row's own client, then -1."""
    other = (found >= 0) & (found != clients[:, None])
    order = np.argsort(~other, axis=1, kind="stable")[:, :k]
    return np.where(np.take_along_axis(other, order, axis=1), np.take_along_axis(found, order, axis=1), -1)


@dataclass(frozen=True)
class Neighbours:
    """The k nearest stored samples of each query: ``distance`` (n, k) *squared* L2, ``label`` (n, k).

    Where a store holds fewer than k samples, distance is inf and label -1.
    """

    distance: NDArray[np.float64]
    label: NDArray[np.int64]


@dataclass(frozen=True)
class Stores:
    """All clients' datastores: client c's index is ``blob[bytes[c]:bytes[c + 1]]``, its labels
    ``y[offsets[c]:offsets[c + 1]]``, of which the first ``train[c]`` are training samples.
    """

    blob: bytes
    bytes: NDArray[np.int64]
    y: NDArray[np.int64]
    offsets: NDArray[np.int64]
    train: NDArray[np.int64]

    def search(
        self,
        clients: Sequence[int] | NDArray[np.int64],
        z: NDArray[np.float32],
        bounds: NDArray[np.int64],
        k: int,
        *,
        train_only: bool,
    ) -> Neighbours:
        """Search each client's store for its own queries: rows ``bounds[i]:bounds[i + 1]`` of ``z`` are the i-th's.

        ``train_only`` searches the training samples alone; k is clamped to the size of each store.
        """
        faiss = _faiss()
        distance = np.full((len(z), k), np.inf)
        label = np.full((len(z), k), -1, dtype=np.int64)
        for place, client in enumerate(clients):
            first, last = bounds[place], bounds[place + 1]
            size = int(self.train[client] if train_only else self.offsets[client + 1] - self.offsets[client])
            if first == last or size == 0:
                continue
            raw = np.frombuffer(self.blob, np.uint8)[self.bytes[client] : self.bytes[client + 1]]
            index = faiss.deserialize_index(raw)
            depth = min(k, size)
            # A selector takes FAISS off its fast path: only where part of the store is searched.
            part = size < index.ntotal
            within = faiss.SearchParameters(sel=faiss.IDSelectorRange(0, size)) if part else None
            queries = np.ascontiguousarray(z[first:last], dtype=np.float32)
            found, row = index.search(queries, depth, params=within)
            # FAISS answers -1 for what it cannot find; such places stay empty.
            place_of = np.where(row >= 0, row, 0) + self.offsets[client]
            distance[first:last, :depth] = np.where(row >= 0, np.maximum(found, 0), np.inf)
            label[first:last, :depth] = np.where(row >= 0, self.y[place_of], -1)
        return Neighbours(distance, label)


def votes(found: Neighbours, classes: int, exponent: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return p_kNN (n, C): the softmax of ``exponent`` (n, k) over each query's neighbours, summed by label.

    kNN-Per, Eq. 6. The largest exponent is subtracted first, so that far neighbours never give 0/0. A query without
    neighbours gets a row of zeros.
    """
    known = found.label >= 0
    e = np.where(known, exponent, -np.inf)
    top = e.max(axis=1, keepdims=True, initial=-np.inf)
    weight = np.where(known, np.exp(e - np.where(np.isfinite(top), top, 0)), 0.0)
    total = weight.sum(axis=1, keepdims=True)
    weight = np.divide(weight, total, out=np.zeros_like(weight), where=total > 0)
    p = np.zeros((len(weight), classes))
    rows = np.broadcast_to(np.arange(len(weight))[:, None], weight.shape)
    np.add.at(p, (rows[known], found.label[known]), weight[known])
    return p
