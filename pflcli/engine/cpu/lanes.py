"""Vector instructions for compiled loops over many small systems at once, of which each is a lane of every vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from pflcli.engine.cpu.vectors import INDEX, INT, Vectors

_intrinsic: Any = intrinsic
_utils: Any = cgutils


def minus_products(rows: int) -> Callable[..., None]:
    """Return a function that subtracts sums of products from ``rows`` rows of numbers, lane by lane.

    From c[c0 + r c_row + j] it subtracts the sum over p < count of a[a0 + r a_row + p a_step + j] b[b0 + p b_step + j],
    for r < rows and j < width. Arrays are contiguous, and everything else counts numbers. LLVM would write every
    partial sum to memory.
    """

    @_intrinsic  # type: ignore[untyped-decorator]
    def subtract(
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
        width: Any,
    ) -> Any:
        def generate(context: Any, bld: Any, signature: Any, values: Sequence[Any]) -> Any:
            count, _, a0, a_row, a_step, _, b0, b_step, _, c0, c_row, width = values
            vec = Vectors(context, bld, c)
            from_b = vec.at(b, values[5], b0)
            from_a, to_c = (
                [vec.ahead(first, bld.mul(stride, INT(r))) for r in range(rows)]
                for first, stride in ((vec.at(a, values[1], a0), a_row), (vec.at(c, values[8], c0), c_row))
            )

            def body(lane: Any, mask: Any) -> None:
                sums = [_utils.alloca_once_value(bld, vec.all(0.0)) for _ in range(rows)]  # which become registers
                for total in sums:
                    bld.store(vec.all(0.0), total)
                with _utils.for_range(bld, count) as loop:
                    factor = vec.load(vec.ahead(from_b, bld.add(lane, bld.mul(loop.index, b_step))), mask)
                    place = bld.add(lane, bld.mul(loop.index, a_step))
                    for row, total in zip(from_a, sums, strict=True):
                        bld.store(vec.fused(vec.load(vec.ahead(row, place), mask), factor, bld.load(total)), total)
                for row, total in zip(to_c, sums, strict=True):
                    target = vec.ahead(row, lane)
                    vec.store(bld.fsub(vec.load(target, mask), bld.load(total)), target, mask)

            vec.along(width, body)
            return context.get_dummy_value()

        i = INDEX
        return types.void(i, a, i, i, i, b, i, i, c, i, i, i), generate

    function: Callable[..., None] = subtract
    return function
