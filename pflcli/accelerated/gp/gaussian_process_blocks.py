"""Algebra of Gaussian processes over many samples, compiled: each chain's matrix by products of tiles.

With B = I + W^1/2 K W^1/2 = U'U, U has as many rows as there are samples, and further columns: to the right of U stands
U'^-1 times what is given there, as if B had those columns, too. Blocks of rows follow each other. What the rows above
take off a block is a product of matrices; the factors of the blocks on the diagonal, and their inverses, are computed
for all chains at a time, which are lanes of vectors. In these blocks, and below them, U is not written.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.accelerated.compiler import compiled
from pflcli.accelerated.gp.gaussian_process_lanes import cholesky
from pflcli.accelerated.lanes import solve
from pflcli.accelerated.products import product, transpose
from pflcli.accelerated.vectors import as_row

Array = NDArray[Any]

BLOCK = 16
"""Rows of a block."""

_COLUMNS = 4
"""Columns of an inverse that begin at the same row."""

_GROUP = 1 << 19
"""Numbers of the factors that are computed at a time: they stay in the cache."""

_ONE = np.float32(1)


@compiled
def new_factors(n: int, columns: int, chains: int) -> tuple[Array, Array]:
    """Return memory for U with so many columns, and for inverses, of each chain."""
    row = -(-columns // BLOCK) * BLOCK
    row += BLOCK if row % 256 == 0 else 0  # rows at powers of two lie in the same places of the cache
    return np.empty((chains, n, row), np.float32), np.empty((chains, -(-n // BLOCK), BLOCK, BLOCK), np.float32)


@compiled
def group_size(n: int, columns: int, chains: int) -> int:
    """Return how many chains at a time, of at most 2 MiB together if that is at least four of them."""
    return max(1, min(chains, max(4, _GROUP // (n * columns))))


@compiled
def factor(wide: Array, columns: int, root: Array, last: Array, u: Array, inverses: Array, first_chain: int) -> None:
    """Write factors into ``u`` (group, n, row), for the chains from ``first_chain`` on.

    Of ``wide`` the first n columns are K. W^1/2 times the others, up to ``columns``, stand to the right of B, then one
    of ``last`` (n, chains). ``root`` (n, chains) are the diagonals of W^1/2. ``inverses`` (group, blocks, BLOCK,
    BLOCK) become those of the blocks on the diagonal of U, transposed.
    """
    n = len(wide)
    group, row = len(u), u.shape[2]
    flat, flat_inverses = as_row(u), as_row(inverses)
    block, scale = np.empty((group, BLOCK, row), np.float32), np.empty((group, row), np.float32)
    flat_block = as_row(block)
    for c in range(group):
        for j in range(row):
            scale[c, j] = root[j, first_chain + c] if j < n else _ONE
    for first in range(0, n, BLOCK):
        rows, width = min(BLOCK, n - first), columns + 1 - first
        for c in range(group):
            place, to = c * n * row + first, c * BLOCK * row
            product((rows, width, first), flat, place, 1, row, flat, place, row, flat_block, to, row, 0)
            for i in range(rows):
                own, source, factors = block[c, i], wide[first + i, first:columns], scale[c, first:]
                factor_of_row = factors[i]
                for j in range(len(source)):
                    own[j] = factor_of_row * source[j] * factors[j] - own[j]
                own[i] += _ONE
                own[width - 1] = last[first + i, first_chain + c] - own[width - 1]
        _invert(flat_block, row, flat_inverses, (first // BLOCK) * BLOCK * BLOCK, inverses.shape[1], rows, group)
        for c in range(group):
            inverse = (c * inverses.shape[1] + first // BLOCK) * BLOCK * BLOCK
            place, to = c * BLOCK * row + rows, (c * n + first) * row + first + rows
            size = rows, width - rows, rows
            product(size, flat_inverses, inverse, BLOCK, 1, flat_block, place, row, flat, to, row, 0)


@compiled
def _invert(block: Array, row: int, inverses: Array, to: int, blocks: int, rows: int, group: int) -> None:
    """Write L^-1 into ``inverses``, from ``to`` on; L L' is the square at the beginning of ``block``."""
    factors, turned = np.empty((rows, rows, group), np.float32), np.zeros((rows, BLOCK, group), np.float32)
    flat, flat_turned = as_row(factors), as_row(turned)
    step, step_turned = rows * group, BLOCK * group
    for j in range(rows):
        transpose(block, j * row, BLOCK * row, flat, j * group, step, group, rows)
    cholesky(factors)
    for i in range(rows):
        for q in range(0, i, _COLUMNS):
            place, of_row, to_row = q * (step_turned + group), i * step + q * group, i * step_turned + q * group
            known, columns = i - q, min(_COLUMNS, i - q)
            solve(
                known,
                flat_turned,
                place,
                group,
                step_turned,
                flat,
                of_row,
                group,
                flat_turned,
                to_row,
                group,
                columns,
                group,
            )
        for c in range(group):
            turned[i, i, c] = factors[i, i, c]
    for i in range(rows):
        transpose(flat_turned, i * step_turned, group, inverses, to + i * BLOCK, blocks * BLOCK * BLOCK, rows, group)


@compiled
def back_substitute(n: int, u: Array, inverses: Array, first_column: int, columns: int) -> None:
    """Replace ``columns`` columns of ``u`` (group, n, row), from ``first_column`` on, by U^-1 times them."""
    group, row = len(u), u.shape[2]
    flat, flat_inverses = as_row(u), as_row(inverses)
    block = np.empty((BLOCK, columns), np.float32)
    flat_block = as_row(block)
    for c in range(group):
        for index in range((n - 1) // BLOCK, -1, -1):
            first = index * BLOCK
            rows, after = min(BLOCK, n - first), min(n, first + BLOCK)
            to = (c * n + first) * row
            place, below, to = to + after, (c * n + after) * row + first_column, to + first_column
            product((rows, columns, n - after), flat, place, row, 1, flat, below, row, flat_block, 0, columns, 0)
            for i in range(rows):
                own, source = block[i], u[c, first + i, first_column:]
                for j in range(len(own)):
                    own[j] = source[j] - own[j]
            inverse = (c * inverses.shape[1] + index) * BLOCK * BLOCK
            size = rows, columns, rows
            product(size, flat_inverses, inverse, 1, BLOCK, flat_block, 0, columns, flat, to, row, 0)


@compiled
def back_substitute_last(u: Array, inverses: Array, column: int, x: Array, first_chain: int) -> None:
    """Write U^-1 times one column of ``u`` (group, n, row) into ``x`` (n, chains), from ``first_chain`` on."""
    group, n = u.shape[:2]
    own, block = np.empty(n, np.float32), np.empty(BLOCK, np.float32)
    for c in range(group):
        for index in range((n - 1) // BLOCK, -1, -1):
            first = index * BLOCK
            rows, after = min(BLOCK, n - first), min(n, first + BLOCK)
            below = own[after:]
            for i in range(rows):
                source, total = u[c, first + i, after:], np.float32(0)
                for p in range(len(below)):
                    total += source[p] * below[p]
                block[i] = u[c, first + i, column] - total
            own[first:after] = 0
            to = own[first:after]
            for p in range(rows):
                inverse = inverses[c, index, p]
                for i in range(rows):
                    to[i] += inverse[i] * block[p]
        for i in range(n):
            x[i, first_chain + c] = own[i]
