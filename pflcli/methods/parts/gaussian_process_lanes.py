"""Algebra of Gaussian processes over few samples, compiled: chains are lanes of vectors.

For a few samples a call to LAPACK takes longer than its arithmetic. Chains stand last in every array, so that the
innermost loops run over them. ``gaussian_process_blocks.py`` is for more samples.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.engine.cpu.compiler import compiled
from pflcli.engine.cpu.lanes import minus_products

Array = NDArray[Any]

_ONE = np.float32(1)
_ROWS = 4
_minus4, _minus1 = minus_products(_ROWS), minus_products(1)


@compiled
def cholesky(b: Array) -> None:
    """Replace ``b`` (n, n, chains), of which the lower half counts, by its factors, with reciprocals as diagonals."""
    n, chains = len(b), b.shape[2]
    row = n * chains
    for j in range(n):
        i = j
        while i < n:
            place = i * row
            if n - i >= _ROWS:
                _minus4(j, b, place, row, chains, b, j * row, chains, b, place + j * chains, row, chains)
                i += _ROWS
            else:
                _minus1(j, b, place, row, chains, b, j * row, chains, b, place + j * chains, row, chains)
                i += 1
        for c in range(chains):
            b[j, j, c] = _ONE / math.sqrt(b[j, j, c])
        for i in range(j + 1, n):
            for c in range(chains):
                b[i, j, c] *= b[j, j, c]


@compiled
def _eliminate(b: Array, b0: int, b_step: int, x: Array, i: int, first: int, count: int) -> None:
    """Subtract ``count`` rows of ``x`` (n, m, chains), from ``first`` on, times numbers of ``b`` from row i.

    Then scale it by the reciprocal of the diagonal.
    """
    m, chains = x.shape[1], x.shape[2]
    row = m * chains
    q = 0
    while q < m:
        place = q * chains
        if m - q >= _ROWS:
            _minus4(count, x, first * row + place, chains, row, b, b0, b_step, x, i * row + place, chains, chains)
            q += _ROWS
        else:
            _minus1(count, x, first * row + place, chains, row, b, b0, b_step, x, i * row + place, chains, chains)
            q += 1
    for q in range(m):
        for c in range(chains):
            x[i, q, c] *= b[i, i, c]


@compiled
def forward(b: Array, x: Array) -> None:
    """Replace ``x`` (n, m, chains) by L^-1 x."""
    n, chains = len(b), b.shape[2]
    for i in range(n):
        _eliminate(b, i * n * chains, chains, x, i, 0, i)


@compiled
def backward(b: Array, x: Array) -> None:
    """Replace ``x`` (n, m, chains) by L'^-1 x."""
    n, chains = len(b), b.shape[2]
    for i in range(n - 1, -1, -1):
        _eliminate(b, ((i + 1) * n + i) * chains, n * chains, x, i, i + 1, n - 1 - i)


@compiled
def factored(k: Array, root: Array) -> Array:
    """Return the factors (n, n, chains) of I + W^1/2 K W^1/2 for ``k`` (n, n) and ``root`` (n, chains)."""
    n, chains = root.shape
    b = np.empty((n, n, chains), np.float32)
    for i in range(n):
        for j in range(i + 1):
            for c in range(chains):
                b[i, j, c] = root[i, c] * k[i, j] * root[j, c]
        for c in range(chains):
            b[i, i, c] += _ONE
    cholesky(b)
    return b
