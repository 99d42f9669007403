"""The store of one client, and how its samples vote."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pflcli.knn import indexes
from pflcli.knn.stores import Stores


@dataclass(frozen=True)
class ClientStore:
    """A client's stored samples: classes ``y`` (n,), and representations ``z`` (n, d) or a compressed FAISS ``index``.

    The index may have further rows after the first n, which are not searched.
    """

    y: NDArray[np.int64]
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


def client_store(stores: Stores, client: int) -> ClientStore:
    """Return the store of one client."""
    size = int(stores.train[client])
    raw = stores.blob[stores.bytes[client] : stores.bytes[client + 1]]
    labels = np.array(stores.y[stores.offsets[client] : stores.offsets[client] + size])
    vectors = indexes.flat_vectors(raw) if size else np.zeros((0, 1), np.float32)
    if vectors is None:
        return ClientStore(labels, index=indexes.first_rows(raw, size))
    return ClientStore(labels, np.array(vectors[:size]))
