"""Heterogeneity of clients: the Jensen-Shannon divergence (base 2, from 0 to 1) of their label distributions.

Jensen-Shannon divergence: Lin (1991), https://doi.org/10.1109/18.61115. It is 0 for iid clients,
and 1 between clients that have no label in common. Clients without samples are left out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def jensen_shannon(p: Array, q: Array) -> NDArray[np.float64]:
    """Return the divergence (...), in bits, of the distributions ``p`` and ``q`` (..., C) along the last axis."""
    middle = (p + q) / 2
    # Rounding may make the divergence of equal distributions slightly negative.
    return np.maximum((_kullback_leibler(p, middle) + _kullback_leibler(q, middle)) / 2, 0.0)


def _kullback_leibler(p: Array, q: Array) -> NDArray[np.float64]:
    """Return sum p log2(p / q) over the last axis, with 0 log 0 = 0; ``q`` must be positive where ``p`` is."""
    ratio = np.ones(np.broadcast_shapes(p.shape, q.shape))
    np.divide(p, q, out=ratio, where=p > 0)
    total: NDArray[np.float64] = (p * np.log2(ratio)).sum(axis=-1)
    return total


def divergence_from_overall(counts: Array) -> float:
    """Return the mean divergence of clients from the overall label distribution; nan without samples.

    ``counts`` (m, C) are samples by client and label. The mean is not weighted by samples.
    """
    p = _distributions(counts)
    if not len(p):
        return math.nan
    return float(jensen_shannon(p, counts.sum(axis=0) / counts.sum()).mean())


def divergence_between_clients(counts: Array, rng: np.random.Generator, pairs: int = 10_000) -> float:
    """Return the mean divergence over all pairs of clients, or over ``pairs`` random pairs if there are more.

    ``counts`` (m, C) are samples by client and label. nan if fewer than two clients have samples.
    """
    p = _distributions(counts)
    if len(p) < 2:
        return math.nan
    if len(p) * (len(p) - 1) // 2 <= pairs:
        first, second = np.triu_indices(len(p), k=1)
    else:
        first = rng.integers(len(p), size=pairs)
        second = (first + rng.integers(1, len(p), size=pairs)) % len(p)
    step = max(1, 4_000_000 // p.shape[1])  # bounds the memory of a block to about 100 MB
    blocks = [slice(start, start + step) for start in range(0, len(first), step)]
    return float(np.concatenate([jensen_shannon(p[first[block]], p[second[block]]) for block in blocks]).mean())


def _distributions(counts: Array) -> NDArray[np.float64]:
    """Return the label distributions (k, C) of the k clients that have samples."""
    shares: NDArray[np.float64] = counts[counts.sum(axis=1) > 0].astype(np.float64)
    shares /= shares.sum(axis=1, keepdims=True)
    return shares
