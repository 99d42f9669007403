"""Tiles of matrix products as vector instructions, for compiled loops.

LLVM does not keep a tile of a product in registers if it is written as a loop. A number of ``tile``'s product is one
chain of fused multiply-adds in the order of the inner index; one of ``dot_tile``'s is the sum of as many chains as a
vector has numbers, added up in pairs of neighbours. Neither depends on the size of tiles.

Numba's cache on disk does not see a change to this file: touch the files that import it after one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from pflcli.engine.cpu.vectors import BYTES, INDEX, INT, Vectors

_intrinsic: Any = intrinsic
_utils: Any = cgutils

ROWS = (6, 4, 3, 2, 1) if BYTES == 32 else (14, 7, 4, 2, 1)
"""Rows of the tiles that there are: a tile of two vectors per row must fit into 16 or 32 registers."""

DOT_ROWS = (3, 2) if BYTES == 32 else (6, 5, 4)
"""Rows of the tiles of vectors along the inner index."""

DOT_COLUMNS = 4
"""columns of those tiles"""


def tile(rows: int) -> Callable[..., None]:
    """Return a function that multiplies ``rows`` rows of ``a`` with two vectors of each row of ``b``.

    It writes c[c0 + r c_row + j] = sum over k < inner of a[a0 + r a_row + k a_inner] b[b0 + k b_row + j] for r < rows
    and j < width, where ``width`` is at most two vectors; with ``more`` it adds the sum to what is there. Arrays are
    contiguous, and everything else counts numbers.
    """

    @_intrinsic  # type: ignore[untyped-decorator]
    def multiply(
        typing: Any,
        inner: Any,
        a: Any,
        a0: Any,
        a_row: Any,
        a_inner: Any,
        b: Any,
        b0: Any,
        b_row: Any,
        c: Any,
        c0: Any,
        c_row: Any,
        width: Any,
        more: Any,
    ) -> Any:
        def generate(context: Any, bld: Any, signature: Any, values: Sequence[Any]) -> Any:
            _generate_tile(rows, Vectors(context, bld, c), bld, (a, b, c), values)
            return context.get_dummy_value()

        i = INDEX
        return types.void(i, a, i, i, i, b, i, i, c, i, i, i, i), generate

    function: Callable[..., None] = multiply
    return function


def _generate_tile(rows: int, vec: Vectors, bld: Any, arrays: Sequence[Any], values: Sequence[Any]) -> None:
    """Write the instructions of ``tile`` for its arguments."""
    a, b, c = arrays
    inner, a0, a_row, a_inner, b0, b_row, c0, c_row, width, more = (values[i] for i in _TILE_INTEGERS)
    from_a, from_b, to_c = vec.at(a, values[1], a0), vec.at(b, values[5], b0), vec.at(c, values[8], c0)
    columns = [first * vec.lanes for first in range(2)]

    cells = [(vec.ahead(to_c, bld.mul(c_row, INT(r))), j) for r in range(rows) for j in range(2)]
    masks = [vec.mask(first, width) for first in columns]
    sums = [_utils.alloca_once_value(bld, vec.all(0.0)) for _ in cells]  # which become registers
    for total in sums:
        bld.store(vec.all(0.0), total)
    with bld.if_then(bld.icmp_signed("!=", more, INT(0))):
        for (row, j), total in zip(cells, sums, strict=True):
            bld.store(vec.load(vec.ahead(row, columns[j]), masks[j]), total)
    with _utils.for_range(bld, inner) as loop:
        row = vec.ahead(from_b, bld.mul(loop.index, b_row))
        pair = [vec.load(vec.ahead(row, columns[j]), masks[j]) for j in range(2)]
        column = vec.ahead(from_a, bld.mul(loop.index, a_inner))
        for r in range(rows):
            factor = vec.all(bld.load(vec.ahead(column, bld.mul(a_row, INT(r)))))
            for j in range(2):
                total = sums[2 * r + j]
                bld.store(vec.fused(factor, pair[j], bld.load(total)), total)
    # Whole vectors apart: without AVX-512 masked stores are slow.
    with bld.if_else(bld.icmp_signed(">=", width, INT(2 * vec.lanes))) as (full, partial):
        for branch, used in ((full, (None, None)), (partial, masks)):
            with branch:
                for (row, j), total in zip(cells, sums, strict=True):
                    vec.store(bld.load(total), vec.ahead(row, columns[j]), used[j])


_TILE_INTEGERS = (0, 2, 3, 4, 6, 7, 9, 10, 11, 12)


def dot_tile(height: int) -> Callable[..., None]:
    """Return a function that multiplies up to ``height`` rows of ``a`` with up to ``DOT_COLUMNS`` rows of ``b``.

    It writes c[c0 + r c_row + j] = sum over k < inner of a[a0 + r a_row + k] b[b0 + j b_row + k] for r < rows and
    j < width; with ``more`` it adds the sum to what is there. Arrays are contiguous, and everything else counts
    numbers. Fewer rows take as long as all.
    """

    @_intrinsic  # type: ignore[untyped-decorator]
    def multiply(
        typing: Any,
        inner: Any,
        a: Any,
        a0: Any,
        a_row: Any,
        b: Any,
        b0: Any,
        b_row: Any,
        c: Any,
        c0: Any,
        c_row: Any,
        rows: Any,
        width: Any,
        more: Any,
    ) -> Any:
        def generate(context: Any, bld: Any, signature: Any, values: Sequence[Any]) -> Any:
            inner, _, a0, a_row, _, b0, b_row, _, c0, c_row, rows, width, more = values
            vec = Vectors(context, bld, c)
            from_a = _rows(vec, bld, vec.at(a, values[1], a0), a_row, height, rows)
            from_b = _rows(vec, bld, vec.at(b, values[4], b0), b_row, DOT_COLUMNS, width)
            sums = _generate_dots(vec, bld, inner, from_a, from_b)
            part = Vectors(context, bld, c, min(vec.lanes, DOT_COLUMNS))
            for r, row in enumerate(_rows(part, bld, vec.at(c, values[7], c0), c_row, height, rows)):
                with bld.if_then(bld.icmp_signed("<", INT(r), rows)):
                    totals = [bld.load(total) for total in sums[r]]
                    for i, total in enumerate(vec.pairwise(totals)):
                        place, mask = part.ahead(row, i * part.lanes), part.mask(i * part.lanes, width)
                        before = part.load(place, bld.and_(mask, part.all_or_none(bld.icmp_signed("!=", more, INT(0)))))
                        part.store(bld.fadd(before, total), place, mask)
            return context.get_dummy_value()

        i = INDEX
        return types.void(i, a, i, i, b, i, i, c, i, i, i, i, i), generate

    function: Callable[..., None] = multiply
    return function


def _rows(vec: Vectors, bld: Any, first: Any, stride: Any, count: int, existing: Any) -> list[Any]:
    """Return the addresses of ``count`` rows; those that do not exist are the last one that does."""
    last = bld.sub(existing, INT(1))
    places = [bld.select(bld.icmp_signed("<", INT(r), existing), INT(r), last) for r in range(count)]
    return [vec.ahead(first, bld.mul(stride, place)) for place in places]


def _generate_dots(vec: Vectors, bld: Any, inner: Any, from_a: list[Any], from_b: list[Any]) -> list[list[Any]]:
    """Write the instructions that multiply rows, and return per row and column the place of a vector of sums."""
    sums = [[_utils.alloca_once_value(bld, vec.all(0.0)) for _ in from_b] for _ in from_a]  # which become registers
    for total in (total for row in sums for total in row):
        bld.store(vec.all(0.0), total)

    def body(first: Any, mask: Any) -> None:
        columns = [vec.load(vec.ahead(row, first), mask) for row in from_b]
        for row, totals in zip(from_a, sums, strict=True):
            factor = vec.load(vec.ahead(row, first), mask)
            for column, total in zip(columns, totals, strict=True):
                bld.store(vec.fused(factor, column, bld.load(total)), total)

    vec.along(inner, body)
    return sums
