"""Tiles of matrix products and transposition as vector instructions, for compiled loops.

LLVM does not keep a tile of a product in registers if it is written as a loop. A number of ``tile``'s product is one
chain of fused multiply-adds in the order of the inner index; one of ``dot_tile``'s is the sum of as many chains as a
vector has numbers, added up in pairs of neighbours. Neither depends on the size of tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from pflcli.accelerated.vectors import BYTES, INDEX, INT, WIDE, Vectors

_intrinsic: Any = intrinsic
_utils: Any = cgutils

MOST = 6 if BYTES == 32 else 14
"""Rows of the largest tile: one of two vectors per row must fit into 16 or 32 registers."""

DOT_ROWS = (3, 2) if BYTES == 32 else (6, 5, 4)
"""Rows of the tiles of vectors along the inner index."""

DOT_COLUMNS = 4
"""columns of those tiles"""


def _tile() -> Callable[..., None]:
    @_intrinsic  # type: ignore[untyped-decorator]
    def multiply(
        typing: Any,
        rows: Any,
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
            after = bld.append_basic_block("after")
            choice = bld.switch(values[0], after)
            for count in (1, *range(2, MOST + 1, 2)):
                choice.add_case(INT(count), block := bld.append_basic_block(f"rows{count}"))
                bld.position_at_end(block)
                _generate_tile(count, Vectors(context, bld, c), bld, (a, b, c), values[1:])
                bld.branch(after)
            bld.position_at_end(after)
            return context.get_dummy_value()

        i = INDEX
        return types.void(i, i, a, i, i, i, b, i, i, c, i, i, i, i), generate

    function: Callable[..., None] = multiply
    return function


tile = _tile()
"""``tile(rows, inner, a, a0, a_row, a_inner, b, b0, b_row, c, c0, c_row, width, more)`` multiplies ``rows`` rows of
``a``, one or an even number up to ``MOST``, with two vectors of each row of ``b``.

It writes c[c0 + r c_row + j] = sum over k < inner of a[a0 + r a_row + k a_inner] b[b0 + k b_row + j] for r < rows and
j < width, where ``width`` is at most two vectors; with ``more`` it adds the sum to what is there. Arrays are
contiguous, and everything else counts numbers.
"""


def _generate_tile(rows: int, vec: Vectors, bld: Any, arrays: Sequence[Any], values: Sequence[Any]) -> None:
    """Write the instructions of ``tile`` for its arguments."""
    a, b, c = arrays
    inner, a0, a_row, a_inner, b0, b_row, c0, c_row, width, more = (values[i] for i in _TILE_INTEGERS)
    # LLVM would count a pointer per row if it knew the distance, and run out of registers.
    a_inner = bld.asm(ir.FunctionType(INT, [INT]), "", "=r,0", [a_inner], False)
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

    def write(used: Sequence[Any]) -> None:
        for (row, j), total in zip(cells, sums, strict=True):
            vec.store(bld.load(total), vec.ahead(row, columns[j]), used[j])

    if WIDE:
        write(masks)
        return
    # Whole vectors apart: without AVX-512 masked stores are slow.
    with bld.if_else(bld.icmp_signed(">=", width, INT(2 * vec.lanes))) as (full, partial):
        with full:
            write((None, None))
        with partial:
            write(masks)


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
                        part.store(part.sum(before, total), place, mask)
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


def _turn() -> Callable[..., None]:
    @_intrinsic  # type: ignore[untyped-decorator]
    def transpose(typing: Any, x: Any, x0: Any, x_row: Any, y: Any, y0: Any, y_row: Any, rows: Any, width: Any) -> Any:
        def generate(context: Any, bld: Any, signature: Any, values: Sequence[Any]) -> Any:
            _, x0, x_row, _, y0, y_row, rows, width = values
            vec = Vectors(context, bld, y)
            from_x, to_y, lanes = vec.at(x, values[0], x0), vec.at(y, values[3], y0), INT(vec.lanes)
            full = bld.and_(bld.icmp_signed("==", rows, lanes), bld.icmp_signed("==", width, lanes))

            def copy(masks: Callable[[int, Any, Any], Any]) -> None:
                of_x = [vec.ahead(from_x, bld.mul(x_row, INT(i))) for i in range(vec.lanes)]
                square = [vec.load(place, masks(i, rows, width)) for i, place in enumerate(of_x)]
                for j, column in enumerate(vec.transposed(square)):
                    vec.store(column, vec.ahead(to_y, bld.mul(y_row, INT(j))), masks(j, width, rows))

            with bld.if_else(full) as (square_of_lanes, part):
                with square_of_lanes:
                    copy(lambda index, count, width: None)
                with part:
                    none = INT(0)
                    copy(
                        lambda index, count, width: vec.mask(
                            0, bld.select(bld.icmp_signed("<", INT(index), count), width, none)
                        )
                    )
            return context.get_dummy_value()

        i = INDEX
        return types.void(x, i, i, y, i, i, i, i), generate

    function: Callable[..., None] = transpose
    return function


turn = _turn()
"""``turn(x, x0, x_row, y, y0, y_row, rows, width)`` writes y[y0 + j y_row + i] = x[x0 + i x_row + j] for i < rows and
j < width, where both are at most one vector. Arrays are contiguous, and everything else counts numbers.
"""
