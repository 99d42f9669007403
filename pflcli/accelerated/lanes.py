"""Vector instructions for compiled loops over many small systems at once, of which each is a lane of every vector.

LLVM would write every partial sum to memory, and take loops over a few lanes number by number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from pflcli.accelerated.vectors import INDEX, INT, Vectors

_intrinsic: Any = intrinsic
_utils: Any = cgutils


_ROWS = 4
"""Rows of numbers that are computed at a time, so that none waits for itself."""


def _elimination(*, scales: bool) -> Callable[..., None]:
    @_intrinsic  # type: ignore[untyped-decorator]
    def eliminate(
        typing: Any,
        count: Any,
        a: Any,
        a0: Any,
        a_row: Any,
        a_step: Any,
        b: Any,
        b0: Any,
        b_step: Any,
        c: Any,
        c0: Any,
        c_row: Any,
        rows: Any,
        width: Any,
    ) -> Any:
        def generate(context: Any, bld: Any, signature: Any, values: Sequence[Any]) -> Any:
            count, _, a0, a_row, a_step, _, b0, b_step, _, c0, c_row, rows, width = values
            vec = Vectors(context, bld, c)
            from_b = vec.at(b, values[5], b0)

            def rows_from(first: Any, together: int) -> None:
                place_a, place_c = bld.add(a0, bld.mul(first, a_row)), bld.add(c0, bld.mul(first, c_row))
                from_a = [vec.at(a, values[1], bld.add(place_a, bld.mul(a_row, INT(r)))) for r in range(together)]
                to_c = [vec.at(c, values[8], bld.add(place_c, bld.mul(c_row, INT(r)))) for r in range(together)]
                own = partial(_eliminated, vec, bld, count, from_a, a_step, from_b, b_step, to_c, scales)
                _along_pairs(vec, bld, width, own)

            groups = bld.sdiv(rows, INT(_ROWS))
            with _utils.for_range(bld, groups) as loop:
                rows_from(bld.mul(loop.index, INT(_ROWS)), _ROWS)
            first, after = bld.mul(groups, INT(_ROWS)), bld.append_basic_block("after")
            choice = bld.switch(bld.sub(rows, first), after)
            for rest in range(1, _ROWS):
                choice.add_case(INT(rest), block := bld.append_basic_block(f"rest{rest}"))
                bld.position_at_end(block)
                rows_from(first, rest)
                bld.branch(after)
            bld.position_at_end(after)
            return context.get_dummy_value()

        i = INDEX
        return types.void(i, a, i, i, i, b, i, i, c, i, i, i, i), generate

    function: Callable[..., None] = eliminate
    return function


def _eliminated(
    vec: Vectors,
    bld: Any,
    count: Any,
    from_a: Sequence[Any],
    a_step: Any,
    from_b: Any,
    b_step: Any,
    to_c: Sequence[Any],
    scales: bool,
    lanes: Sequence[Any],
    masks: Sequence[Any],
) -> None:
    """Write the instructions of ``minus_products`` or ``solve`` for some rows and lanes."""
    parts = list(zip(lanes, masks, strict=True))
    cells = [(r, part) for r in range(len(from_a)) for part in range(len(parts))]
    sums = [_utils.alloca_once_value(bld, vec.all(0.0)) for _ in cells]  # which become registers
    for total in sums:
        bld.store(vec.all(0.0), total)
    with _utils.for_range(bld, count) as loop:
        places = [bld.add(lane, bld.mul(loop.index, a_step)) for lane in lanes]
        row = vec.ahead(from_b, bld.mul(loop.index, b_step))
        factors = [vec.load(vec.ahead(row, lane), mask) for lane, mask in parts]
        for (r, part), total in zip(cells, sums, strict=True):
            value = vec.load(vec.ahead(from_a[r], places[part]), masks[part])
            bld.store(vec.fused(value, factors[part], bld.load(total)), total)
    row = vec.ahead(from_b, bld.mul(count, b_step))
    scale = [vec.load(vec.ahead(row, lane), mask) if scales else None for lane, mask in parts]
    for (r, part), total in zip(cells, sums, strict=True):
        target = vec.ahead(to_c[r], lanes[part])
        rest = bld.fsub(vec.load(target, masks[part]), bld.load(total))
        vec.store(bld.fmul(rest, scale[part]) if scales else rest, target, masks[part])


def _along_pairs(vec: Vectors, bld: Any, count: Any, body: Callable[[Any, Any], None]) -> None:
    """Write a loop over ``count`` numbers; ``body`` gets the first numbers of one or two vectors, and masks."""
    pairs = bld.sdiv(count, INT(2 * vec.lanes))
    with _utils.for_range(bld, pairs) as loop:
        first = bld.mul(loop.index, INT(2 * vec.lanes))
        body([first, bld.add(first, INT(vec.lanes))], [None, None])
    first = bld.mul(pairs, INT(2 * vec.lanes))
    rest = bld.sub(count, first)
    with bld.if_then(bld.icmp_signed(">", rest, INT(0))):
        is_two = bld.icmp_signed(">", rest, INT(vec.lanes))
        with bld.if_else(is_two) as (two, one):
            with two:
                body([first, bld.add(first, INT(vec.lanes))], [None, vec.mask(vec.lanes, rest)])
            with one:
                body([first], [vec.mask(0, rest)])


minus_products = _elimination(scales=False)
"""``minus_products(count, a, a0, a_row, a_step, b, b0, b_step, c, c0, c_row, rows, width)`` subtracts sums of products
from ``rows`` rows of numbers, lane by lane.

From c[c0 + r c_row + j] it subtracts the sum over p < count of a[a0 + r a_row + p a_step + j] b[b0 + p b_step + j], for
r < rows and j < width. Arrays are contiguous, and everything else counts numbers.
"""

solve = _elimination(scales=True)
"""``solve`` does as ``minus_products``, and then multiplies by the next number of b, b[b0 + count b_step + j]."""


def _products() -> Callable[..., None]:
    @_intrinsic  # type: ignore[untyped-decorator]
    def multiply(typing: Any, factor: Any, a: Any, a0: Any, b: Any, b0: Any, c: Any, c0: Any, width: Any) -> Any:
        def generate(context: Any, bld: Any, signature: Any, values: Sequence[Any]) -> Any:
            vec = Vectors(context, bld, c)
            scale, width = vec.all(values[0]), values[7]
            from_a, from_b, to_c = (vec.at(x, values[i], values[i + 1]) for x, i in ((a, 1), (b, 3), (c, 5)))

            def body(lane: Any, mask: Any) -> None:
                first, second = (vec.load(vec.ahead(place, lane), mask) for place in (from_a, from_b))
                vec.store(bld.fmul(bld.fmul(first, scale), second), vec.ahead(to_c, lane), mask)

            vec.along(width, body)
            return context.get_dummy_value()

        i = INDEX
        return types.void(c.dtype, a, i, b, i, c, i, i), generate

    function: Callable[..., None] = multiply
    return function


products = _products()
"""``products(factor, a, a0, b, b0, c, c0, width)`` writes c[c0 + j] = factor a[a0 + j] b[b0 + j] for j < ``width``."""
