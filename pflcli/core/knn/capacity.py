"""Selects the samples of stores with limited capacity: the first of a permutation, so that small stores are subsets."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pflcli.core import rng


def arrival_order(seed: int, split: str, client: int, n: int) -> NDArray[np.int64]:
    """Return the order (n,) in which a growing store receives a client's samples of a split."""
    return rng.generator(seed, "capacity", split, client).permutation(np.arange(n))


def count_kept_rows(capacity: float, n: int) -> int:
    """Return how many of ``n`` samples a store with this capacity keeps, rounded up."""
    return math.ceil(round(capacity * n, 6))  # 0.07 * 100 is 7.000000000000001


def kept_rows(capacity: float, order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows that a store with this capacity keeps, sorted; ``order`` is the order of arrival."""
    return np.sort(order[: count_kept_rows(capacity, len(order))])


def draw_capacities(capacity: float, difference: float, clients: int, seed: int) -> NDArray[np.float64]:
    """Return the capacity of each client, (m,): ``difference`` less for a random half, and more for the others.

    Hardware heterogeneity, kNN-Per, appendix B, Figure 9. The random half is the same for every difference.
    """
    weak = rng.generator(seed, "weak").permutation(clients)[: clients // 2]
    capacities = np.full(clients, capacity + difference)
    capacities[weak] = capacity - difference
    return capacities
