"""Votes of neighbours that hide distances: shares of a class, the class with most votes, or that under noise.

Noise is that of a report of a noisy maximum (Dwork & Roth 2014, https://doi.org/10.1561/0400000042, section 3.3):
Laplace noise on the votes of each class, of which the class with most is answered. One stored sample replaced by any
other exchanges at most one of the k nearest, so that one class loses a vote and another gains one, whatever k: the
votes change by 2 in L1 norm, and noise of scale 2 / epsilon makes one answer epsilon-differentially private. That holds
for the samples of a store, given the representations and the number of samples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pflcli.knn.embedded import Embedded
from pflcli.knn.flat_format import flat_vectors
from pflcli.knn.stores import Neighbours, Stores

Votes = NDArray[np.float64]

SENSITIVITY = 2.0
"""By how much one replaced sample changes the votes of all classes together."""


def counted(neighbours: Neighbours, classes: int) -> Votes:
    """Return how many of the neighbours of each query are of each class, (n, C)."""
    votes, exists = np.zeros((len(neighbours.label), classes)), neighbours.label >= 0
    rows = np.broadcast_to(np.arange(len(votes))[:, None], exists.shape)
    np.add.at(votes, (rows[exists], neighbours.label[exists]), 1.0)
    return votes


def shares(votes: Votes) -> Votes:
    """Return the share of each class (n, C) in the votes; zeros where there are none."""
    total = votes.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(votes, total, out=np.zeros_like(votes), where=total > 0))


def most(votes: Votes, noise: Votes | None = None) -> Votes:
    """Return 1 for the class with most votes plus ``noise`` (n, C), of equal ones the first; zeros without any vote."""
    best = (votes if noise is None else votes + noise).argmax(axis=1)
    return np.asarray(np.eye(votes.shape[1])[best] * (votes.sum(axis=1, keepdims=True) > 0))


def noise(
    part: Embedded,
    clients: NDArray[np.int64],
    classes: int,
    epsilon: float,
    draw: Callable[..., np.random.Generator],
) -> Votes:
    """Return the noise (n, C) on the votes for the queries ``part`` of the clients (m,), by the keyed ``draw``.

    It is drawn for a query by its client and representation: who asks again gets the same answer, and learns no more.
    """
    owner = np.repeat(clients, np.diff(part.offsets))
    values = np.zeros((len(part.z), classes))
    for row, (client, z) in enumerate(zip(owner.tolist(), part.z, strict=True)):
        query = hashlib.blake2b(np.ascontiguousarray(z, "<f4").tobytes(), digest_size=16).hexdigest()
        values[row] = draw("vote noise", client, query).laplace(scale=SENSITIVITY / epsilon, size=classes)
    return values


def holds_samples(stores: Stores, client: int, parts: list[Embedded]) -> bool:
    """Return whether each vector of a client's store is that of one of its own samples in ``parts``.

    A prototype depends on several samples; so may a vector of an index that was trained or that rounds.
    """
    if stores.offsets[client] == stores.offsets[client + 1]:
        return True
    vectors = flat_vectors(stores.blob[stores.bytes[client] : stores.bytes[client + 1]])
    if vectors is None:
        return False
    own = {z.tobytes() for part in parts for z in part.take(np.asarray([client])).z}
    return all(vector.tobytes() in own for vector in np.asarray(vectors))
