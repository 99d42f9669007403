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
def splits(x: Array, draws: Array) -> Array:
    """Return the tree (n - 1, n) of ``class_tree.build`` over rows ``x`` (n, d), n >= 2.

    ``draws`` (n - 1, restarts, 2) are those of ``split`` at each node.
    """
    n = len(x)
    tree, waiting, depth, row = np.zeros((n - 1, n), np.int64), np.ones((n, n), np.bool_), 1, 0
    while depth:
        depth -= 1
        members = np.flatnonzero(waiting[depth])
        if len(members) < 2:
            continue
        part = split(x[members], draws[row, : 1 if len(members) == 2 else len(draws[row])])
        waiting[depth : depth + 2] = False
        for i in range(len(members)):
            is_first = part[i] == part[0]
            tree[row, members[i]] = 1 if is_first else -1
            waiting[depth + is_first, members[i]] = True  # the first branch is taken from the stack first
        depth, row = depth + 2, row + 1
    return tree


@compiled
def split(x: Array, draws: Array) -> Array:
    """Return to which of two parts, neither empty, k-means assigns each row of ``x`` (n, d), n >= 2.

    ``draws`` (restarts, 2) are uniform in [0, 1): the first centre of each run, and the second. If all rows are equal,
    they are cut in the middle.
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
