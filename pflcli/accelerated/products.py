"""Matrix products on one thread: those of MKL, or of compiled loops where MKL does not use the best instructions.

On an AMD EPYC with AVX-512 the loops are 2.4 to 2.7 times as fast as MKL, which keeps to AVX2 there. The choice follows
from the CPU, never from timing: the same machine gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import llvmlite.binding
import numpy as np
import torch
from torch import Tensor

from pflcli.accelerated.compiler import Array, compiled, inlined
from pflcli.accelerated.instructions import (
    BYTES,
    DOT_COLUMNS,
    DOT_ROWS,
    MOST,
    PAIR,
    WIDE,
    combination,
    dot_tile,
    prefetch,
    tile,
    turn,
)

Step = Callable[[], object]
"""A part of a pass that computes in memory which it knows."""

_CPU: str = llvmlite.binding.get_host_cpu_name()
"""What LLVM calls this CPU: ``znver`` and a number is one of AMD's."""

OWN = WIDE and _CPU.startswith("znver")
"""Whether matrix products are compiled loops instead of MKL's."""

WHY = (
    f"matrix products in compiled loops, as MKL does not use AVX-512 on {_CPU}" if OWN else "matrix products by PyTorch"
)
"""The choice in words, for users."""

_PANEL, _FAR, _DEEP = 128, 1024, 64
"""Columns of a panel; the distance of rows in numbers, and the number of rows, from which it pays to copy them."""

_LINE = 64
"""bytes that come into the cache together"""

_DEPTH = 64
"""Rows that ``streamed_product`` multiplies at a time."""

_PAGE = 4096
"""Bytes by which rows are apart that have the same places in the first cache."""

_copy = combination([[1]])
_HEIGHT0, _HEIGHT1 = DOT_ROWS[:2]
_dots0, _dots1, _dots2 = (dot_tile(rows) for rows in (_HEIGHT0, _HEIGHT1, DOT_ROWS[-1]))

_DOTS, _LANES = 1024, 16
"""Numbers of the inner index in a block of ``product_by_rows``, and in the longest vector."""

_NEAR, _BLOCK = 32 * 1024, 384 * 1024
"""Bytes that stay in the first cache of a core, and in the second."""


@inlined
def _height(left: int) -> int:
    """Return the rows of the next tile of those that are left, of about the same size: small ones are slow."""
    tiles = (left + MOST - 1) // MOST
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

    ``size`` is m, n and k. The first element of the matrix in ``a`` is a[a0]; its rows are ``a_row`` numbers apart, and
    its columns ``a_inner``. The rows of the others are ``b_row`` and ``c_row`` numbers apart.
    """
    m, n, k = size
    step = PAIR // c.itemsize
    for j in range(0, n, step):
        width = min(step, n - j)
        i = 0
        while i < m:
            rows = _height(m - i)
            tile(
                rows, k, a, a0 + i * a_row, a_row, a_inner, b, b0 + j, b_row, c, c0 + i * c_row + j, c_row, width, more
            )
            i += rows


@compiled
def transpose(x: Array, x0: int, x_row: int, y: Array, y0: int, y_row: int, rows: int, columns: int) -> None:
    """Write into ``y``, from y[y0], the transpose of a matrix (rows, columns) that begins at x[x0].

    The rows of the two are ``x_row`` and ``y_row`` numbers apart.
    """
    step = BYTES // x.itemsize
    for i in range(0, rows, step):
        for j in range(0, columns, step):
            high, wide = min(step, rows - i), min(step, columns - j)
            turn(x, x0 + i * x_row + j, x_row, y, y0 + j * y_row + i, y_row, high, wide)


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
    """Do as ``product`` with matrices that begin at 0, ``_PANEL`` columns of ``b`` after the other.

    They are copied to a panel where rows are neighbours. Rows far apart would lie on a page each and, a power of two
    apart, in the same places of the cache.
    """
    m, n, k = size
    panel = np.empty(k * _PANEL, b.dtype)
    for j in range(0, n, _PANEL):
        width = min(_PANEL, n - j)
        for i in range(k):
            # Of the next panel, so that its memory is read while this one is multiplied.
            for place in range(j + _PANEL, min(n, j + 2 * _PANEL), _LINE // b.itemsize):
                prefetch(b, i * b_row + place)
            _copy(b, i * b_row + j, 0, panel, i * _PANEL, 0, width)
        product((m, width, k), a, 0, strides[0], strides[1], panel, 0, _PANEL, c, j, c_row, more)


@compiled
def streamed_product(
    size: tuple[int, int, int],
    a: Array,
    strides: tuple[int, int],
    b: Array,
    b0: int,
    b_row: int,
    c: Array,
    c_row: int,
    more: int,
) -> None:
    """Do as ``product`` where ``a`` and ``c`` begin at 0, and ``b`` lies in memory: it is read while others multiply.

    Its rows, and those of ``c``, should not be a multiple of a page apart: they would have the same places in a cache.
    """
    m, n, k = size
    step, line = PAIR // b.itemsize, _LINE // b.itemsize
    for j in range(0, n, step):
        for first in range(0, k, _DEPTH):
            depth, i = min(_DEPTH, k - first), 0
            # Then come further rows of these columns, or the first ones of the next.
            row, column = (first + depth, j) if first + depth < k else (0, j + step)
            waiting, end = min(_DEPTH, k - row), min(n, column + step)
            while i < m:
                rows, width, adds = _height(m - i), min(step, n - j), 1 if first else more
                for ahead in range(row + waiting * i // m, row + waiting * (i + rows) // m):
                    for place in range(column, end, line):
                        prefetch(b, b0 + ahead * b_row + place)
                from_a, from_b, to = i * strides[0] + first * strides[1], b0 + first * b_row + j, i * c_row + j
                tile(rows, depth, a, from_a, strides[0], strides[1], b, from_b, b_row, c, to, c_row, width, adds)
                i += rows


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
    """Write the product of a matrix (m, k) in ``a`` and a turned one (n, k) in ``b`` into ``c``, or add it if ``more``.

    The first element of the matrix in ``a`` is a[a0], and its rows are ``a_row`` numbers apart; so for the others.
    ``size`` is m, n and k.
    """
    m, n, k = size
    step = -(-k // -(-k // _DOTS) // _LANES) * _LANES
    for first in range(0, k, step):
        inner = min(step, k - first)
        # Four rows of b meet all of a if that stays in the first cache; else a few rows of a meet a block of b.
        bytes_of_row = inner * c.itemsize
        width = DOT_COLUMNS if m * bytes_of_row <= _NEAR else DOT_COLUMNS * (_BLOCK // (DOT_COLUMNS * bytes_of_row))
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


def multiply(a: Tensor, b: Tensor, out: Tensor, adds: bool = False, near: bool = True) -> Step:
    """Return the function that writes the product of ``a`` (m, k) and ``b`` (k, n) into ``out``, or adds it.

    The numbers of a row of ``b``, and of ``out``, must be neighbours. ``near`` says that ``b`` lies in the cache.
    """
    if not OWN:
        return partial(out.addmm_, a, b) if adds else partial(torch.mm, a, b, out=out)
    (m, k), n = a.shape, b.shape[1]
    from_a, from_b, to = (flat(value) for value in (a, b, out))
    apart = all(value.stride(0) * value.element_size() % _PAGE for value in (b, out))
    if not near and apart:
        rows = from_b, 0, b.stride(0), to, out.stride(0), int(adds)
        return partial(streamed_product, (m, n, k), from_a, a.stride(), *rows)
    if b.stride(0) >= _FAR and (k >= _DEEP or not near):
        return partial(packed_product, (m, n, k), from_a, a.stride(), from_b, b.stride(0), to, out.stride(0), int(adds))
    sizes = (m, n, k), from_a, 0, a.stride(0), a.stride(1), from_b, 0, b.stride(0), to, 0, out.stride(0), int(adds)
    return partial(product, *sizes)


def multiply_by_rows(x: Tensor, weight: Tensor, out: Tensor, new: Callable[..., Tensor]) -> list[Step]:
    """Return the functions that write the product of ``x`` (m, k) and a turned ``weight`` (n, k) into ``out`` (m, n).

    The numbers of each row must be neighbours. ``new`` allocates memory of a shape.
    """
    if not OWN:
        return [partial(torch.mm, x, weight.t(), out=out)]
    (m, k), n = x.shape, len(weight)
    if m > k:  # many short rows: adding up their vectors would take longer than turning the weight
        turned = new(k, n)
        return [partial(turned.copy_, weight.t()), multiply(x, turned, out)]
    a, b, c = (flat(value) for value in (x, weight, out))
    return [partial(product_by_rows, (m, n, k), a, 0, x.stride(0), b, 0, weight.stride(0), c, 0, out.stride(0), 0)]


def flat(value: Tensor) -> Array:
    """Return all numbers from the first to the last of ``value`` in memory, those between its rows among them."""
    if value.is_contiguous():
        return value.view(-1).numpy()
    extent = 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return value.as_strided((extent,), (1,)).numpy()
