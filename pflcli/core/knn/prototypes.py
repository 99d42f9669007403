"""Prototypes: a few vectors per class that replace a client's samples, the centres of k-means within the class.

They take the place of ProtoNN in kNN-Per's Figure 11 (Marfoq et al., 2022, appendix B). Only the centres are learned; a
FAISS index such as "PCA64,Flat" can project them. The centres are initialized by k-means++ (Arthur and Vassilvitskii,
2007, https://dl.acm.org/doi/10.5555/1283383.1283494) and updated by Lloyd's iterations until no sample changes its
centre.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pflcli.core.knn.indexes import find_nearest

_ITERATIONS = 50


def build_prototypes(
    z: NDArray[np.float32], y: NDArray[np.int64], count: int, rng: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Return ``count`` prototypes (p, d) of ``z`` (n, d), their classes (p,), and the row (p,) that each copies, or -1.

    The number of prototypes per class is proportional to its size, and at least one. A class with as many prototypes as
    samples keeps the samples.
    """
    classes, sizes = np.unique(y, return_counts=True)
    parts: list[tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]] = [(z[:0], y[:0], y[:0])]
    for label, size, share in zip(classes, sizes, divide_among_classes(sizes, count), strict=True):
        rows = np.flatnonzero(y == label)
        keeps_all = share == size
        centres = z[rows] if keeps_all else k_means(z[rows], int(share), rng)
        parts.append((centres, np.full(share, label), rows if keeps_all else np.full(share, -1)))
    centre, label, row = (np.concatenate(part) for part in zip(*parts, strict=True))
    return centre, label, row


def divide_among_classes(sizes: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Divide ``count`` among classes in proportion to ``sizes`` (C,), by Sainte-Laguë's method.

    A class gets at least one, and at most its size. Each of the others goes to the class with the largest
    size / (2 s + 1), where s is the number that it has.
    """
    counts = np.minimum(sizes, 1)
    for _ in range(min(count, int(sizes.sum())) - int(counts.sum())):
        counts[np.argmax(np.where(counts < sizes, sizes / (2 * counts + 1), -1))] += 1
    return counts


def k_means(x: NDArray[np.float32], k: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Return ``k`` centres (k, d) of ``x`` (n, d), n >= k; a centre without samples does not move."""
    centres = x[_initial_rows(x, k, rng)].astype(np.float64)
    assigned = np.full(len(x), -1)
    for _ in range(_ITERATIONS):
        closest = find_nearest(centres.astype(np.float32), x, 1)[1][:, 0]
        if np.array_equal(closest, assigned):
            break
        assigned = closest
        sums, sizes = np.zeros_like(centres), np.bincount(assigned, minlength=k)
        np.add.at(sums, assigned, x)
        occupied = sizes > 0
        centres[occupied] = sums[occupied] / sizes[occupied, None]
    return centres.astype(np.float32)


def _initial_rows(x: NDArray[np.float32], k: int, rng: np.random.Generator) -> list[int]:
    """Draw initial centres, each with probability proportional to the squared distance from the previous ones."""
    rows = [int(rng.integers(len(x)))]
    distance = np.full(len(x), np.inf)
    while len(rows) < k:
        distance = np.minimum(distance, np.square(x - x[rows[-1]], dtype=np.float64).sum(axis=1))
        distance[rows] = 0
        total = distance.sum()
        left = np.setdiff1d(np.arange(len(x)), rows)
        rows.append(int(rng.choice(len(x), p=distance / total) if total > 0 else rng.choice(left)))
    return rows
