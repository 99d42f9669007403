"""The stores of all clients, and the search for neighbours in each client's own store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.core.knn import indexes


@dataclass(frozen=True)
class Neighbours:
    """The k nearest stored samples of each query: ``distance`` (n, k) *squared* L2, ``label`` (n, k).

    If a store has fewer than k samples, the missing distances are inf and the missing labels -1.
    """

    distance: NDArray[np.float64]
    label: NDArray[Any]


_SAME = 1e-5
"""Largest squared distance of a sample from itself after rounding, as a share of its squared length."""


def leave_out(neighbours: Neighbours, labels: NDArray[Any], norms: NDArray[np.float64], k: int) -> Neighbours:
    """Return the k nearest neighbours without the query itself, of the k + 1 ``neighbours`` of each query (n,).

    A query is the first neighbour at distance 0 with its label, ``labels`` (n,), up to rounding; a class of -1, or nan,
    marks a query that is not stored. ``norms`` (n,) are the squared lengths of the queries.

    >>> import numpy as np
    >>> from pflcli.method import Neighbours, leave_out
    >>> found = Neighbours(np.array([[0.0, 4.0, 9.0]]), np.array([[1, 0, 1]]))
    >>> leave_out(found, np.array([1]), np.array([2.0]), 2).distance.tolist()
    [[4.0, 9.0]]
    """
    is_self = (neighbours.label == labels[:, None]) & (neighbours.distance <= _SAME * norms[:, None])
    is_stored = labels >= 0 if labels.dtype.kind == "i" else ~np.isnan(labels)
    is_self &= is_stored[:, None] & (is_self.cumsum(axis=1) == 1)
    rows, order = np.arange(len(labels))[:, None], np.argsort(is_self, axis=1, kind="stable")[:, :k]
    distance = np.where(is_self, np.inf, neighbours.distance)[rows, order]
    return Neighbours(distance, np.where(is_self, -1, neighbours.label)[rows, order])


@dataclass(frozen=True)
class Stores:
    """All clients' stores: the serialized index of client c is ``blob[bytes[c]:bytes[c + 1]]``.

    The labels of its rows are ``y[offsets[c]:offsets[c + 1]]``.
    """

    blob: NDArray[np.uint8]
    bytes: NDArray[np.int64]
    y: NDArray[Any]
    offsets: NDArray[np.int64]
    threads: int = 1

    def digest(self, client: int) -> str:
        """Return a hash of a client's store: of its index and its labels."""
        index = self.blob[self.bytes[client] : self.bytes[client + 1]]
        labels = self.y[self.offsets[client] : self.offsets[client + 1]].astype("<i8")
        return hashlib.blake2b(index.tobytes() + labels.tobytes(), digest_size=16).hexdigest()

    def search(
        self,
        clients: Sequence[int] | NDArray[np.int64],
        z: NDArray[np.float32],
        bounds: NDArray[np.int64],
        k: int,
    ) -> Neighbours:
        """Search each client's store for its own queries: client i has the rows ``bounds[i]:bounds[i + 1]`` of ``z``.

        ``k`` is limited to the number of samples in the largest of these stores.
        """
        clients = np.asarray(clients, dtype=np.int64)
        sizes = np.diff(self.offsets)[clients]
        k = min(k, max(1, int(sizes.max(initial=1))))
        distance = np.full((len(z), k), np.inf)
        row = np.full((len(z), k), -1, dtype=np.int64)

        def search_each(first: int, last: int) -> None:
            for position in range(first, last):
                queries, size = slice(bounds[position], bounds[position + 1]), int(sizes[position])
                if size and queries.stop > queries.start:
                    own = min(k, size)
                    raw = self.blob[self.bytes[clients[position]] : self.bytes[clients[position] + 1]]
                    squared, rows = indexes.search(raw, z[queries], own)
                    distance[queries, :own] = np.where(rows >= 0, squared, np.inf)
                    row[queries, :own] = rows

        call_in_threads(search_each, len(clients), self.threads)
        exists = row >= 0
        row += np.repeat(self.offsets[clients], np.diff(bounds))[:, None]
        label = np.full(row.shape, -1, self.y.dtype)
        label[exists] = self.y[row[exists]]
        return Neighbours(np.maximum(distance, 0, out=distance), label)


@dataclass(frozen=True)
class ClientStore:
    """A client's stored samples: labels ``y`` (n,), and representations ``z`` (n, d) or a compressed ``index``."""

    y: NDArray[Any]
    z: NDArray[np.float32] | None = None
    index: NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class NeighbourVote:
    """A client's store and how its samples vote: kNN-Per, Eq. 6 and 7, with the options tuned on validation samples.

    ``k`` neighbours at distance d have weight exp(-d / sigma), or exp(-d^2 / (dimension sigma)) with the ``kernel``
    scaled-squared. Their vote is mixed with the network's probabilities by lambda (``weight``), which falls by
    ``decay`` per unit of distance to the nearest neighbour.
    """

    store: ClientStore
    k: int
    weight: float
    sigma: float
    decay: float
    kernel: str


def select_client(stores: Stores, client: int) -> ClientStore:
    """Return the store of one client.

    >>> import numpy as np
    >>> from pflcli.method import Stores, flat_indexes, select_client
    >>> indexes = flat_indexes([np.zeros((3, 2), "float32"), np.ones((1, 2), "float32")])
    >>> select_client(Stores(*indexes, np.array([0, 1, 0, 1]), np.array([0, 3, 4])), 1).y.tolist()
    [1]
    """
    raw = stores.blob[stores.bytes[client] : stores.bytes[client + 1]]
    labels = np.array(stores.y[stores.offsets[client] : stores.offsets[client + 1]])
    vectors = indexes.flat_vectors(raw) if len(labels) else np.zeros((0, 1), np.float32)
    if vectors is None:
        return ClientStore(labels, index=np.array(raw))
    return ClientStore(labels, np.array(vectors))


_CALLS_PER_THREAD = 16
"""Number of calls per thread, so that large stores are distributed over threads."""


def call_in_threads(work: Callable[[int, int], None], count: int, threads: int) -> None:
    """Call ``work(first, last)`` for ranges over 0 to ``count`` - 1 in parallel, each with one PyTorch thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    # Submitting a call costs as much as searching a small store, so each call covers several.
    step = max(1, count // (_CALLS_PER_THREAD * max(1, threads)))

    def part(first: int) -> None:
        work(first, min(first + step, count))

    try:
        with ThreadPoolExecutor(max(1, threads), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            list(pool.map(part, range(0, count, step)))
    finally:
        torch.set_num_threads(before)
