"""Votes of neighbours: by distance, or hiding it: class shares, the majority class, or the majority class under noise.

The noise is report noisy max (Dwork & Roth 2014, https://doi.org/10.1561/0400000042, section 3.3): Laplace noise is
added to the votes of each class, and the class with the largest sum is released. Replacing one stored sample changes at
most one of the k nearest, so that one class loses a vote and another gains one, for every k. The votes change by 2 in
L1 norm, and noise of scale 2 / epsilon makes one prediction epsilon-differentially private. This holds for the samples
of a store, given the representations and the number of samples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pflcli.core.knn.embedded import Embedded
from pflcli.core.knn.indexes import flat_vectors
from pflcli.core.knn.stores import Neighbours, Stores

Votes = NDArray[np.float64]

SENSITIVITY = 2.0
"""The L1 norm of the change in votes when one sample is replaced."""


def vote_by_distance(neighbours: Neighbours, classes: int, exponent: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return p_kNN (n, C): the softmax of ``exponent`` (n, k) over each query's neighbours, summed by label.

    kNN-Per, Eq. 6. The largest exponent is subtracted first, so that distant neighbours do not give 0/0. A query
    without neighbours gets a row of zeros.
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


def mean_by_distance(neighbours: Neighbours, exponent: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean label (n, 1) of each query's neighbours, weighted by the softmax of ``exponent`` (n, k).

    It is nan for a query without neighbours. This is Nadaraya and Watson's estimate among the nearest samples.
    """
    exists = np.isfinite(neighbours.distance)
    e = np.where(exists, exponent, -np.inf)
    largest = e.max(axis=1, keepdims=True, initial=-np.inf)
    weight = np.where(exists, np.exp(e - np.where(np.isfinite(largest), largest, 0)), 0.0)
    total = weight.sum(axis=1, keepdims=True)
    sums = (weight * np.where(exists, neighbours.label, 0)).sum(axis=1, keepdims=True)
    return np.asarray(np.divide(sums, total, out=np.full_like(sums, np.nan), where=total > 0))


def count_votes(neighbours: Neighbours, classes: int) -> Votes:
    """Return the number of each query's neighbours in each class, (n, C)."""
    votes, exists = np.zeros((len(neighbours.label), classes)), neighbours.label >= 0
    rows = np.broadcast_to(np.arange(len(votes))[:, None], exists.shape)
    np.add.at(votes, (rows[exists], neighbours.label[exists]), 1.0)
    return votes


def normalize_votes(votes: Votes) -> Votes:
    """Return the share of each class in the votes, (n, C); zeros for a query without votes."""
    total = votes.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(votes, total, out=np.zeros_like(votes), where=total > 0))


def select_majority(votes: Votes, noise: Votes | None = None) -> Votes:
    """Return 1 for the class with the most votes plus ``noise`` (n, C), the first of equal ones, and 0 for the others.

    A query without votes gets a row of zeros.
    """
    best = (votes if noise is None else votes + noise).argmax(axis=1)
    return np.asarray(np.eye(votes.shape[1])[best] * (votes.sum(axis=1, keepdims=True) > 0))


def draw_noise(
    part: Embedded,
    clients: NDArray[np.int64],
    classes: int,
    epsilon: float,
    stores: Stores,
    draw: Callable[..., np.random.Generator],
) -> Votes:
    """Return the noise (n, C) for the votes on the queries ``part`` of the clients (m,), from the keyed ``draw``.

    The seed of ``draw`` must be a secret: anyone who can compute the noise can subtract it. The key is the client, its
    store and the representation. Repeating a query therefore repeats the noise and reveals nothing more, while the
    answers of two stores have independent noise, so that their difference does not tell whether votes changed.
    """
    values = np.zeros((len(part.z), classes))
    for client, (first, last) in zip(clients.tolist(), pairwise(part.offsets.tolist()), strict=True):
        store = stores.digest(client)
        for row in range(first, last):
            query = hashlib.blake2b(np.ascontiguousarray(part.z[row], "<f4").tobytes(), digest_size=16).hexdigest()
            generator = draw("vote noise", client, store, query)
            values[row] = generator.laplace(scale=SENSITIVITY / epsilon, size=classes)
    return values


def contains_only_samples(stores: Stores, client: int, parts: list[Embedded]) -> bool:
    """Return whether each vector in a client's store is the representation of one of its own samples in ``parts``.

    A prototype depends on several samples, and so may a vector in a trained or lossy index.
    """
    if stores.offsets[client] == stores.offsets[client + 1]:
        return True
    vectors = flat_vectors(stores.blob[stores.bytes[client] : stores.bytes[client + 1]])
    if vectors is None:
        return False
    own = {z.tobytes() for part in parts for z in part.take(np.asarray([client])).z}
    return all(vector.tobytes() in own for vector in np.asarray(vectors))
