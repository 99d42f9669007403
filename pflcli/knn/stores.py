"""Nearest neighbours in each client's own store.

A store holds a client's training samples first and its validation samples behind them. One index thus serves both the
tuning (training samples alone) and the final prediction (all samples).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.engine import backend
from pflcli.knn import indexes
from pflcli.knn.exact import INEXACT, nearest
from pflcli.knn.flat_format import flat_starts, flat_vectors

_MOST_NEIGHBOURS, _MOST_VECTORS = 64, 1 << 24
"""Neighbours up to which the compiled search pays, and vectors per store up to which it can number them."""

_SECONDS_PER_CLIENT, _SECONDS_PER_NUMBER, _SECONDS_TO_LOAD = 5e-5, 5e-10, 0.08
"""What a compiled search saves, and half of what its loops take to load: a run searches at least two splits."""


@dataclass(frozen=True)
class Neighbours:
    """The k nearest stored samples of each query: ``distance`` (n, k) *squared* L2, ``label`` (n, k).

    If a store holds fewer than k samples, the missing distances are inf and the missing labels -1.
    """

    distance: NDArray[np.float64]
    label: NDArray[np.int64]


@dataclass(frozen=True)
class Stores:
    """All clients' stores: client c's index is ``blob[bytes[c]:bytes[c + 1]]``, its labels
    ``y[offsets[c]:offsets[c + 1]]``, of which the first ``train[c]`` are training samples.

    ``compiled`` says whether compiled loops search them if they are exact; None: where that pays.
    """

    blob: NDArray[np.uint8]
    bytes: NDArray[np.int64]
    y: NDArray[np.int64]
    offsets: NDArray[np.int64]
    train: NDArray[np.int64]
    threads: int = 1
    compiled: bool | None = None

    def search(
        self,
        clients: Sequence[int] | NDArray[np.int64],
        z: NDArray[np.float32],
        bounds: NDArray[np.int64],
        k: int,
    ) -> Neighbours:
        """Search each client's store for its own queries: rows ``bounds[i]:bounds[i + 1]`` of ``z`` are the i-th's.

        Only training samples are searched; k is clamped to their number, and to that of the largest of these stores.
        """
        clients = np.asarray(clients, dtype=np.int64)
        is_short = min(k, self.train.max(initial=0)) <= _MOST_NEIGHBOURS
        # Neighbours beyond the size of the largest store would all be missing, and only take memory.
        k = min(k, max(1, int(self.train[clients].max(initial=1))))
        distance = np.full((len(z), k), np.inf)
        row = np.full((len(z), k), -1, dtype=np.int64)

        def search_each(first: int, last: int) -> None:
            for position in range(first, last):
                span = slice(bounds[position], bounds[position + 1])
                self._search(int(clients[position]), z[span], distance[span], row[span])

        compiled = self._compiled(clients, z, bounds, distance, row) if is_short else None
        spread(compiled or search_each, len(clients), self.threads)
        exists = row >= 0
        row += np.repeat(self.offsets[clients], np.diff(bounds))[:, None]
        label = np.full_like(row, -1)
        label[exists] = self.y[row[exists]]
        return Neighbours(np.maximum(distance, 0, out=distance), label)

    def _search(
        self, client: int, z: NDArray[np.float32], distance: NDArray[np.float64], row: NDArray[np.int64]
    ) -> None:
        """Write the distances and rows (n, k) of the neighbours that a client's queries ``z`` (n, d) have."""
        size = int(self.train[client])
        if len(z) == 0 or size == 0:
            return
        raw, k = self.blob[self.bytes[client] : self.bytes[client + 1]], min(distance.shape[1], size)
        vectors = flat_vectors(raw)
        if vectors is not None:
            distance[:, :k], row[:, :k] = nearest(vectors[:size], z, k)
            return
        squared, rows = indexes.search(raw, z, k, size)
        # FAISS returns -1 for neighbours that it cannot find; those stay missing.
        distance[:, : rows.shape[1]] = np.where(rows >= 0, squared, np.inf)
        row[:, : rows.shape[1]] = rows

    def _compiled(
        self,
        clients: NDArray[np.int64],
        z: NDArray[np.float32],
        bounds: NDArray[np.int64],
        distance: NDArray[np.float64],
        row: NDArray[np.int64],
    ) -> Callable[[int, int], None] | None:
        """Return a compiled search of clients ``first`` to ``last``; None where it does not pay or is not exact.

        The choice follows from the CPU and from all stores, not from how many are searched: a client's neighbours have
        the same bytes alone and among others, where all indexes are exact.
        """
        sizes = self.train[clients]
        if len(z) == 0 or self.train.max() > _MOST_VECTORS or not self._is_compiled():
            return None
        starts = flat_starts(self.blob, self.bytes, clients, sizes, z.shape[1])
        if starts is None:
            return None
        loop = backend.part("nearest")
        assert loop is not None  # as _is_compiled says
        blob, queries = self.blob.view(), np.ascontiguousarray(z, dtype=np.float32).view()
        for array in (blob, queries):
            array.flags.writeable = False  # as Numba compiles apart for arrays that may be written

        def search(first: int, last: int) -> None:
            part = slice(first, last)
            loop.search(blob, starts[part], sizes[part], queries, bounds[first : last + 1], INEXACT, distance, row)

        return search

    def _is_compiled(self) -> bool:
        """Whether searches of all clients save the time that compiled loops take to load, as measured on an AMD EPYC.

        Where products are left to MKL the loops are taken to lose on numbers as much as they save there.
        """
        if backend.why_off():
            return False
        if self.compiled is not None:
            return self.compiled
        calls, numbers = len(self.train) * _SECONDS_PER_CLIENT, self.blob.nbytes / 4 * _SECONDS_PER_NUMBER
        if calls + numbers < _SECONDS_TO_LOAD:
            return False
        products = backend.part("products")
        return products is not None and (products.OWN or calls - numbers >= _SECONDS_TO_LOAD)


_SHARES = 16
"""Shares of the work that a thread gets, one after the other: large stores are then spread over threads."""


def spread(work: Callable[[int, int], None], count: int, threads: int) -> None:
    """Do ``work``, from a first number up to a last, for 0 to ``count`` - 1 in parallel.

    Each part has one intra-op thread, as stores are small.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    # A thread takes several at a time: handing over one costs as much as the search of a small store.
    step = max(1, count // (_SHARES * max(1, threads)))

    def part(first: int) -> None:
        work(first, min(first + step, count))

    try:
        with ThreadPoolExecutor(max(1, threads), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            list(pool.map(part, range(0, count, step)))
    finally:
        torch.set_num_threads(before)


def votes(neighbours: Neighbours, classes: int, exponent: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return p_kNN (n, C): the softmax of ``exponent`` (n, k) over each query's neighbours, summed by label.

    kNN-Per, Eq. 6. The largest exponent is subtracted first, so that distant neighbours never give 0/0. A query without
    neighbours gets a row of zeros.
    """
    exists = neighbours.label >= 0
    e = np.where(exists, exponent, -np.inf)
    largest = e.max(axis=1, keepdims=True, initial=-np.inf)
    weight = np.where(exists, np.exp(e - np.where(np.isfinite(largest), largest, 0)), 0.0)
    total = weight.sum(axis=1, keepdims=True)
    weight = np.divide(weight, total, out=np.zeros_like(weight), where=total > 0)
    p = np.zeros((len(weight), classes))
    rows = np.broadcast_to(np.arange(len(weight))[:, None], weight.shape)
    np.add.at(p, (rows[exists], neighbours.label[exists]), weight[exists])
    return p
