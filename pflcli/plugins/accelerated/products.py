"""Matrix products on one thread: by MKL, or by compiled loops on CPUs where MKL does not use the best instructions.

On an AMD EPYC with AVX-512 the loops are 2.4 to 2.7 times as fast as MKL, which only uses AVX2 there. On one with
AVX2 alone (LLVM's znver3) only chains of linear layers gain: rounds with batches of 10 are 1.4 to 1.8 times as fast,
with batches of 64 level. On an Intel Xeon with AVX-512 (icelake-server) chains gain as much, and inner products of
models more; all others are faster by MKL. The choice depends on the CPU and not on timing, so bytes stay the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import llvmlite.binding
import numpy as np
import torch
from torch import Tensor

from pflcli.plugins.accelerated.compiler import Array, compiled, inlined
from pflcli.plugins.accelerated.instructions import (
    DOT_COLUMNS,
    DOT_ROWS,
    HAS_AVX512,
    MAX_TILE_ROWS,
    PAIR_BYTES,
    VECTOR_BYTES,
    combination,
    dot_tile,
    prefetch,
    tile,
    transpose_square,
)

Step = Callable[[], object]
"""A part of a pass: a function that computes in fixed memory."""

_CPU: str = llvmlite.binding.get_host_cpu_name()
"""LLVM's name of this CPU; AMD's are ``znver`` and a number."""

COMPILED = HAS_AVX512 and _CPU.startswith("znver")
"""Whether matrix products are compiled loops instead of MKL's."""

COMPILED_CHAINS = HAS_AVX512 or (VECTOR_BYTES >= 32 and _CPU.startswith("znver"))
"""Whether those of chains are, where AVX2 suffices on AMD: they take all steps of a client while it is in the cache."""

DESCRIPTION = (
    f"matrix products in compiled loops, as MKL does not use AVX-512 on {_CPU}"
    if COMPILED
    else "matrix products of linear chains in compiled loops, others by PyTorch"
    if COMPILED_CHAINS
    else "matrix products by PyTorch"
)
"""The choice, described for users."""

_PANEL_COLUMNS = 128
"""Columns of ``b`` that ``packed_product`` copies at a time."""

_MIN_PACKED_STRIDE = 1024
"""Distance of rows of ``b``, in numbers, from which on it pays to copy them."""

_LINE_BYTES = 64
"""Bytes of a cache line."""

_copy = combination([[1]])
_HEIGHT0, _HEIGHT1 = DOT_ROWS[:2]
_dots0, _dots1, _dots2 = (dot_tile(rows) for rows in (_HEIGHT0, _HEIGHT1, DOT_ROWS[-1]))

_INNER_BLOCK, _MAX_LANES = 1024, 16
"""Numbers of the inner index in a block of ``product_by_rows``, and numbers in the longest vector."""

_L1_BYTES, _L2_BYTES = 32 * 1024, 384 * 1024
"""Bytes that stay in the first and in the second cache of a core."""


@inlined
def _height(left: int) -> int:
    """Return the number of rows of the next tile. Tiles have about the same size, because small ones are slow."""
    tiles = (left + MAX_TILE_ROWS - 1) // MAX_TILE_ROWS
    rows = ((left + tiles - 1) // tiles + 1) // 2 * 2
    return rows if rows <= left else max(1, left // 2 * 2)


@compiled
def product(
    size: tuple[int, int, int],
    a: Array,
    a0: int,
    a_row: int,
    a_inner: int,
    b: Array,
    b0: int,
    b_row: int,
    c: Array,
    c0: int,
    c_row: int,
    more: int,
) -> None:
    """Write the product of a matrix (m, k) in ``a`` and one (k, n) in ``b`` into ``c``, or add it if ``more`` is 1.

    ``size`` is m, n and k. The matrix in ``a`` begins at a[a0]; ``a_row`` and ``a_inner`` are the strides of its rows
    and columns, in numbers. The other matrices begin at b[b0] and c[c0], with contiguous rows and the strides ``b_row``
    and ``c_row``.
    """
    m, n, k = size
    step = PAIR_BYTES // c.itemsize
    for j in range(0, n, step):
        width = min(step, n - j)
        i = 0
        while i < m:
            rows = _height(m - i)
            if more:  # prefetch the fourth tile from here, as no CPU foresees a way down columns
                for row in range(i + 4 * rows, min(m, i + 5 * rows)):
                    for place in range(j, min(n, j + step), _LINE_BYTES // c.itemsize):
                        prefetch(c, c0 + row * c_row + place)
            tile(
                rows, k, a, a0 + i * a_row, a_row, a_inner, b, b0 + j, b_row, c, c0 + i * c_row + j, c_row, width, more
            )
            i += rows


@compiled
def transpose(x: Array, x0: int, x_row: int, y: Array, y0: int, y_row: int, rows: int, columns: int) -> None:
    """Write the transpose of a matrix (rows, columns) that begins at x[x0] into ``y``, from y[y0] on.

    ``x_row`` and ``y_row`` are the strides of their rows, in numbers.
    """
    step = VECTOR_BYTES // x.itemsize
    for i in range(0, rows, step):
        for j in range(0, columns, step):
            high, wide = min(step, rows - i), min(step, columns - j)
            transpose_square(x, x0 + i * x_row + j, x_row, y, y0 + j * y_row + i, y_row, high, wide)


@compiled
def packed_product(
    size: tuple[int, int, int],
    a: Array,
    strides: tuple[int, int],
    b: Array,
    b_row: int,
    c: Array,
    c_row: int,
    more: int,
) -> None:
    """Do the same as ``product`` with matrices that begin at 0, and copy panels of columns of ``b`` first.

    The rows of a panel are neighbours. Rows with a large stride would be on different pages and, if the stride is a
    power of two, in the same places of the cache.
    """
    m, n, k = size
    panel = np.empty(k * _PANEL_COLUMNS, b.dtype)
    for j in range(0, n, _PANEL_COLUMNS):
        width = min(_PANEL_COLUMNS, n - j)
        for i in range(k):
            # Prefetch the next panel, so that its memory is read while this one is multiplied.
            for place in range(j + _PANEL_COLUMNS, min(n, j + 2 * _PANEL_COLUMNS), _LINE_BYTES // b.itemsize):
                prefetch(b, i * b_row + place)
            _copy(b, i * b_row + j, 0, panel, i * _PANEL_COLUMNS, 0, width)
        product((m, width, k), a, 0, strides[0], strides[1], panel, 0, _PANEL_COLUMNS, c, j, c_row, more)


@compiled
def product_by_rows(
    size: tuple[int, int, int],
    a: Array,
    a0: int,
    a_row: int,
    b: Array,
    b0: int,
    b_row: int,
    c: Array,
    c0: int,
    c_row: int,
    more: int,
) -> None:
    """Write the product of (m, k) in ``a`` and the transpose of (n, k) in ``b`` into ``c``, or add it if ``more`` is 1.

    ``size`` is m, n and k. The matrices begin at a[a0], b[b0] and c[c0]; ``a_row``, ``b_row`` and ``c_row`` are the
    strides of their rows, in numbers.
    """
    m, n, k = size
    step = -(-k // -(-k // _INNER_BLOCK) // _MAX_LANES) * _MAX_LANES
    for first in range(0, k, step):
        inner = min(step, k - first)
        # Multiply four rows of b by all of a if that stays in the first cache, else a block of b by a few rows of a.
        bytes_of_row = inner * c.itemsize
        width = (
            DOT_COLUMNS if m * bytes_of_row <= _L1_BYTES else DOT_COLUMNS * (_L2_BYTES // (DOT_COLUMNS * bytes_of_row))
        )
        for block in range(0, n, width):
            i = 0
            for tiles in range(-(-m // _HEIGHT0), 0, -1):
                rows, from_a = -(-(m - i) // tiles), a0 + i * a_row + first
                for j in range(block, min(n, block + width), DOT_COLUMNS):
                    from_b, to_c, columns = b0 + j * b_row + first, c0 + i * c_row + j, min(DOT_COLUMNS, n - j)
                    if rows == _HEIGHT0:
                        _dots0(inner, a, from_a, a_row, b, from_b, b_row, c, to_c, c_row, rows, columns, more)
                    elif rows == _HEIGHT1:
                        _dots1(inner, a, from_a, a_row, b, from_b, b_row, c, to_c, c_row, rows, columns, more)
                    else:
                        _dots2(inner, a, from_a, a_row, b, from_b, b_row, c, to_c, c_row, rows, columns, more)
                i += rows
        more = 1


def multiply(a: Tensor, b: Tensor, out: Tensor, adds: bool = False) -> Step:
    """Return a function that writes the product of ``a`` (m, k) and ``b`` (k, n) into ``out``, or adds it.

    The rows of ``b`` and ``out`` must be contiguous.
    """
    if not COMPILED:
        return partial(out.addmm_, a, b) if adds else partial(torch.mm, a, b, out=out)
    (m, k), n = a.shape, b.shape[1]
    from_a, from_b, to = (flat_array(value) for value in (a, b, out))
    if b.stride(0) >= _MIN_PACKED_STRIDE:
        return partial(packed_product, (m, n, k), from_a, a.stride(), from_b, b.stride(0), to, out.stride(0), int(adds))
    sizes = (m, n, k), from_a, 0, a.stride(0), a.stride(1), from_b, 0, b.stride(0), to, 0, out.stride(0), int(adds)
    return partial(product, *sizes)


def multiply_by_rows(x: Tensor, rows: Tensor, out: Tensor, new: Callable[..., Tensor], near: bool = True) -> list[Step]:
    """Return functions that write the product of ``x`` (m, k) and ``rows`` (n, k) transposed into ``out`` (m, n).

    All rows must be contiguous. ``new`` allocates memory of a shape. ``near`` says that ``rows`` are in the cache.
    """
    if not COMPILED and (near or not HAS_AVX512):
        return [partial(torch.mm, x, rows.t(), out=out)]
    (m, k), n = x.shape, len(rows)
    if m > k:  # many short rows: adding up vectors along them takes longer than transposing the rows
        turned = new(k, n)
        return [partial(turned.copy_, rows.t()), multiply(x, turned, out)]
    a, b, c = (flat_array(value) for value in (x, rows, out))
    return [partial(product_by_rows, (m, n, k), a, 0, x.stride(0), b, 0, rows.stride(0), c, 0, out.stride(0), 0)]


def flat_array(value: Tensor) -> Array:
    """Return all numbers in memory from the first to the last of ``value``, including those between its rows."""
    if value.is_contiguous():
        return value.view(-1).numpy()
    extent = 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return value.as_strided((extent,), (1,)).numpy()
