"""K-means with two centres for a few rows, compiled: see ``class_tree.py``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.accelerated.compiler import compiled

Array = NDArray[Any]

_STEPS = 100
"""Most steps of k-means, which otherwise ends when no row moves."""


@compiled
def splits(x: Array, draws: Array) -> Array:
    """Return the tree (n - 1, n) of ``class_tree.build`` over rows ``x`` (n, d), n >= 2.

    ``draws`` (n - 1, restarts, 2) are those of ``split`` at each node.
    """
    # Loops, as here and below NumPy's functions on whole arrays would take three seconds to compile.
    n = len(x)
    tree, place, members = np.zeros((n - 1, n), np.int64), np.zeros(n, np.int64), np.empty(n, np.int64)
    depth, row = 1, 0  # of a stack of nodes; ``place`` is that of the node which each row waits in
    while depth:
        depth -= 1
        count = 0
        for i in range(n):
            if place[i] == depth:
                members[count] = i
                count += 1
        if count == 1:
            place[members[0]] = -1
            continue
        part = split(x, members[:count], draws[row])
        for i in range(count):
            is_first = part[i] == part[0]
            tree[row, members[i]] = 1 if is_first else -1
            place[members[i]] = depth + 1 if is_first else depth  # the first branch is taken from the stack first
        depth, row = depth + 2, row + 1
    return tree


@compiled
def split(x: Array, members: Array, draws: Array) -> Array:
    """Return to which of two parts, neither empty, k-means assigns each of the rows ``members`` (n,), n >= 2, of ``x``.

    ``draws`` (restarts, 2) are uniform in [0, 1): the first centre of each run, and the second. If all rows are equal,
    they are cut in the middle.
    """
    n = len(members)
    squared, distance = np.zeros((n, n), np.float64), np.zeros((2, n), np.float64)
    best, part, moved = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
    for i in range(n):
        best[i] = 1 if 2 * i >= n else 0
        for j in range(i):
            total = 0.0
            for d in range(x.shape[1]):
                difference = x[members[i], d] - x[members[j], d]
                total += difference * difference
            squared[i, j] = squared[j, i] = total
    least = np.inf
    for run in range(1 if n == 2 else len(draws)):
        first, mass = int(draws[run, 0] * n), 0.0
        for i in range(n):
            mass += squared[first, i]
        if mass == 0:
            break
        second, passed = first, 0.0
        for i in range(n):
            if squared[first, i] > 0 and passed <= draws[run, 1] * mass:
                second = i
            passed += squared[first, i]
        for i in range(n):
            part[i] = 1 if squared[second, i] < squared[first, i] else 0
        for _ in range(_STEPS):
            _distances(squared, part, distance)
            changes, size = 0, 0
            for i in range(n):
                moved[i] = 1 if distance[1, i] < distance[0, i] else 0
                changes += moved[i] != part[i]
                size += moved[i]
            if changes == 0 or not 0 < size < n:
                break
            part, moved = moved, part
        inertia = 0.0
        for i in range(n):
            inertia += distance[part[i], i]
        if inertia < least:
            best, part, least = part, best, inertia
    return best


@compiled
def _distances(squared: Array, part: Array, distance: Array) -> None:
    """Write the squared distances (2, n) of rows from the means of both parts, by those between rows (n, n)."""
    n = len(part)
    for side in range(2):
        size, within = 0, 0.0
        for i in range(n):
            distance[side, i] = 0
        for j in range(n):
            if part[j] == side:
                size += 1
                for i in range(n):
                    distance[side, i] += squared[i, j]
                    if part[i] == side:
                        within += squared[i, j]
        for i in range(n):
            distance[side, i] = distance[side, i] / size - within / (2 * size * size)
