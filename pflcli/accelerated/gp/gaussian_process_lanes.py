"""Algebra of Gaussian processes over few samples, compiled: chains are lanes of vectors.

For a few samples a call to LAPACK takes longer than its arithmetic. Chains stand last in every array, so that the
innermost loops run over them. ``gaussian_process_blocks.py`` is for more samples.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.accelerated.compiler import compiled
from pflcli.accelerated.lanes import minus_products, products, solve
from pflcli.accelerated.vectors import as_row

Array = NDArray[Any]

_ONE = np.float32(1)


@compiled
def cholesky(b: Array) -> None:
    """Replace ``b`` (n + m, n, chains), of which the lower half counts, by its factors, with reciprocals as diagonals.

    The m rows below the square become L^-1 times each of them.
    """
    n, chains = b.shape[1:]
    row = n * chains
    for j in range(n):
        own, to = j * row, j * row + j * chains
        minus_products(j, b, own, row, chains, b, own, chains, b, to, row, 1, chains)
        for c in range(chains):
            b[j, j, c] = _ONE / math.sqrt(b[j, j, c])
        solve(j, b, own + row, row, chains, b, own, chains, b, to + row, row, len(b) - j - 1, chains)


@compiled
def back_substitute(b: Array) -> None:
    """Replace the rows below the square of ``b`` (n + m, n, chains), after ``cholesky``, by L'^-1 times each."""
    n, chains = b.shape[1:]
    row, first = n * chains, n * n * chains
    for i in range(n - 1, -1, -1):
        # From the last number on, so that what was computed last is added last, and nothing waits for it.
        known, factors, to = first + row - chains, first - row + i * chains, first + i * chains
        solve(n - 1 - i, b, known, row, -chains, b, factors, -row, b, to, row, len(b) - n, chains)


@compiled
def factored(wide: Array, columns: int, root: Array, targets: Array) -> Array:
    """Return the factors (n + m, n, chains) of I + W^1/2 K W^1/2 for ``root`` (n, chains), see ``cholesky``.

    Of ``wide`` the first n columns are K. The rows below are W^1/2 times the others, up to ``columns``, and ``targets``
    (n, chains).
    """
    n, chains = root.shape
    b, ones, row = np.empty((columns + 1, n, chains), np.float32), np.empty(chains, np.float32), n * chains
    flat, roots = as_row(b), as_row(root)
    for c in range(chains):
        ones[c] = _ONE
    for i in range(columns):
        for j in range(min(i + 1, n)):
            place = i * row + j * chains
            if i < n:
                products(wide[i, j], roots, i * chains, roots, j * chains, flat, place, chains)
            else:
                products(wide[j, i], roots, j * chains, ones, 0, flat, place, chains)
        if i < n:
            for c in range(chains):
                b[i, i, c] += _ONE
    last, own = as_row(b[columns]), as_row(targets)
    for e in range(row):
        last[e] = own[e]
    cholesky(b)
    return b


@compiled
def roots_and_targets(labels: Array, omega: Array) -> tuple[Array, Array]:
    """Return W^1/2 and W^-1/2 kappa (n, chains) of samples with ``labels`` (n,), kappa being their halves."""
    root, targets = np.empty_like(omega), np.empty_like(omega)
    flat, flat_omega, flat_targets = as_row(root), as_row(omega), as_row(targets)
    for i in range(len(labels)):
        targets[i] = np.float32(0.5) * np.float32(labels[i])
    for e in range(len(flat)):
        flat[e] = math.sqrt(flat_omega[e])
        flat_targets[e] /= flat[e]
    return root, targets
