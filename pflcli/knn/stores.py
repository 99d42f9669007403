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

from pflcli.knn import indexes
from pflcli.knn.exact import nearest
from pflcli.knn.flat_format import flat_vectors


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
    """

    blob: NDArray[np.uint8]
    bytes: NDArray[np.int64]
    y: NDArray[np.int64]
    offsets: NDArray[np.int64]
    train: NDArray[np.int64]
    threads: int = 1

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
        # Neighbours beyond the size of the largest store would all be missing, and only take memory.
        k = min(k, max(1, int(self.train[np.asarray(clients, dtype=np.int64)].max(initial=1))))
        distance = np.full((len(z), k), np.inf)
        sample = np.full((len(z), k), -1, dtype=np.int64)

        def search(position: int) -> None:
            client, span = int(clients[position]), slice(bounds[position], bounds[position + 1])
            size = int(self.train[client])
            if span.start == span.stop or size == 0:
                return
            raw = self.blob[self.bytes[client] : self.bytes[client + 1]]
            vectors = flat_vectors(raw)
            if vectors is not None:
                distance[span, :size], row = nearest(vectors[:size], z[span], min(k, size))
                np.add(row, self.offsets[client], out=sample[span, :size])
                return
            squared, row = indexes.search(raw, z[span], min(k, size), size)
            # FAISS returns -1 for neighbours that it cannot find; those stay missing.
            distance[span, : row.shape[1]] = np.where(row >= 0, squared, np.inf)
            sample[span, : row.shape[1]] = np.where(row >= 0, row + self.offsets[client], -1)

        each(search, len(clients), self.threads)
        label = sample  # changed in place
        exists = sample >= 0
        label[exists] = self.y[sample[exists]]
        return Neighbours(np.maximum(distance, 0, out=distance), label)


_SHARES = 16
"""Shares of the work of ``each`` that a thread gets, one after the other: large stores are then spread over threads."""


def each(work: Callable[[int], None], count: int, threads: int) -> None:
    """Do ``work`` for 0 to ``count`` - 1 in parallel, each with one intra-op thread, as stores are small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    # A thread takes several at a time: handing over one costs as much as the search of a small store.
    step = max(1, count // (_SHARES * max(1, threads)))

    def several(first: int) -> None:
        for number in range(first, min(first + step, count)):
            work(number)

    try:
        with ThreadPoolExecutor(max(1, threads), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            list(pool.map(several, range(0, count, step)))
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
