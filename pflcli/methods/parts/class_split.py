"""K-means with two centres for a few rows, compiled: see ``class_tree.py``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.engine.cpu.compiler import compiled

Array = NDArray[Any]

_STEPS = 100
"""Most steps of k-means, which otherwise ends when no row moves."""


@compiled
def split(x: Array, draws: Array) -> Array:
    """Return to which of two parts k-means assigns each row of ``x`` (n, d), see ``class_tree.two_means``.

    ``draws`` (restarts, 2) are uniform in [0, 1): the first centre of each run, and the second.
    """
    n = len(x)
    squared = np.zeros((n, n))
    for i in range(n):
        for j in range(i):
            total = 0.0
            for d in range(x.shape[1]):
                total += (x[i, d] - x[j, d]) ** 2
            squared[i, j] = squared[j, i] = total
    best, least = np.arange(n) * 2 >= n, np.inf
    part, distance = np.zeros(n, np.bool_), np.zeros((n, 2))
    for run in range(len(draws)):
        first = int(draws[run, 0] * n)
        mass = squared[first].sum()
        if mass == 0:
            break
        second, passed = first, 0.0
        for i in range(n):
            if squared[first, i] > 0 and passed <= draws[run, 1] * mass:
                second = i
            passed += squared[first, i]
        distance[:, 0], distance[:, 1] = squared[first], squared[second]
        part[:] = distance[:, 1] < distance[:, 0]
        for _ in range(_STEPS):
            _distances(squared, part, distance)
            moved = distance[:, 1] < distance[:, 0]
            if (moved == part).all() or moved.all() or not moved.any():
                break
            part[:] = moved
        inertia = 0.0
        for i in range(n):
            inertia += distance[i, int(part[i])]
        if inertia < least:
            best, least = part.copy(), inertia
    return best


@compiled
def _distances(squared: Array, part: Array, distance: Array) -> None:
    """Write the squared distances (n, 2) of rows from the means of both parts, by those between rows (n, n)."""
    n = len(part)
    for side in range(2):
        size, within = 0, 0.0
        distance[:, side] = 0
        for j in range(n):
            if part[j] == (side == 1):
                size += 1
                for i in range(n):
                    distance[i, side] += squared[i, j]
                    if part[i] == part[j]:
                        within += squared[i, j]
        for i in range(n):
            distance[i, side] = distance[i, side] / size - within / (2 * size * size)
