"""Vector instructions for compiled loops: tiles of matrix products, and sums of rows with constant coefficients.

LLVM does not keep a tile of a product in registers if it is written as a loop. Here the vectors are written out, and
LLVM chooses the instructions of the CPU at hand. A number of a product is one chain of fused multiply-adds in the order
of the inner index, so its bytes depend neither on the size of tiles nor on that of vectors.

Numba's cache on disk does not see a change to this file: touch the files that import it after one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_intrinsic: Any = intrinsic
_utils: Any = cgutils

_FEATURES: Any = llvmlite.binding.get_host_cpu_features()

FUSED = bool(_FEATURES.get("fma") or _FEATURES.get("neon"))
"""whether the CPU multiplies and adds in one instruction"""

WIDE = bool(_FEATURES.get("avx512f"))
"""whether it has vectors of 64 bytes"""

_BYTES = 64 if WIDE else 32 if _FEATURES.get("avx2") else 16

ROWS = (6, 4, 3, 2, 1) if _BYTES == 32 else (14, 7, 4, 2, 1)
"""Rows of the tiles that there are: a tile of two vectors per row must fit into 16 or 32 registers."""

PAIR = 2 * _BYTES
"""bytes in two vectors"""

_INT, _INDEX = ir.IntType(64), types.int64


class _Vectors:
    """Instructions on vectors of the numbers of ``arrays``, Numba types, at builder ``bld``."""

    def __init__(self, context: Any, bld: Any, array: Any) -> None:
        self._context, self._bld = context, bld
        self._element = context.get_value_type(array.dtype)
        self.lanes = _BYTES // (array.dtype.bitwidth // 8)
        self._type = ir.VectorType(self._element, self.lanes)
        self._name = f"v{self.lanes}f{array.dtype.bitwidth}"

    def at(self, array: Any, value: Any, offset: Any) -> Any:
        """Return the address of a number of an array."""
        return self._bld.gep(self._context.make_array(array)(self._context, self._bld, value).data, [offset])

    def ahead(self, address: Any, numbers: Any) -> Any:
        """Return the address so many numbers further on."""
        return self._bld.gep(address, [_INT(numbers) if isinstance(numbers, int) else numbers])

    def all(self, number: Any) -> Any:
        """Return a vector of the same number, which may be a Python number."""
        if isinstance(number, float):
            return ir.Constant(self._type, [ir.Constant(self._element, number)] * self.lanes)
        return self._spread(number, self._type)

    def _spread(self, number: Any, vector: Any) -> Any:
        none, zero = ir.Constant(vector, ir.Undefined), ir.IntType(32)(0)
        first = self._bld.insert_element(none, number, zero)
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [zero] * self.lanes)
        return self._bld.shuffle_vector(first, none, zeros)

    def mask(self, first: int, width: Any) -> Any:
        """Return which numbers of a vector that begins at column ``first`` lie before column ``width``."""
        columns = ir.Constant(ir.VectorType(_INT, self.lanes), [_INT(first + lane) for lane in range(self.lanes)])
        return self._bld.icmp_signed("<", columns, self._spread(width, columns.type))

    def load(self, address: Any, mask: Any = None) -> Any:
        """Return the vector at an address, zero where the ``mask`` is not set."""
        place = self._bld.bitcast(address, self._type.as_pointer())
        if mask is None:
            return self._bld.load(place, align=4)
        arguments = (place, ir.IntType(32)(4), mask, self.all(0.0))
        return self._call(f"llvm.masked.load.{self._name}.p0", self._type, *arguments)

    def store(self, vector: Any, address: Any, mask: Any = None) -> None:
        """Write a vector, where the ``mask`` is set."""
        place = self._bld.bitcast(address, self._type.as_pointer())
        if mask is None:
            self._bld.store(vector, place, align=4)
        else:
            arguments = (vector, place, ir.IntType(32)(4), mask)
            self._call(f"llvm.masked.store.{self._name}.p0", ir.VoidType(), *arguments)

    def fused(self, a: Any, b: Any, c: Any) -> Any:
        """Return a b + c, rounded once."""
        return self._call(f"llvm.fma.{self._name}", self._type, a, b, c)

    def _call(self, name: str, result: Any, *arguments: Any) -> Any:
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        return self._bld.call(_utils.get_or_insert_function(self._bld.module, kind, name), arguments)


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
            _generate_tile(rows, _Vectors(context, bld, c), bld, (a, b, c), values)
            return context.get_dummy_value()

        i = _INDEX
        return types.void(i, a, i, i, i, b, i, i, c, i, i, i, i), generate

    function: Callable[..., None] = multiply
    return function


def _generate_tile(rows: int, vec: _Vectors, bld: Any, arrays: Sequence[Any], values: Sequence[Any]) -> None:
    """Write the instructions of ``tile`` for its arguments."""
    a, b, c = arrays
    inner, a0, a_row, a_inner, b0, b_row, c0, c_row, width, more = (values[i] for i in _TILE_INTEGERS)
    from_a, from_b, to_c = vec.at(a, values[1], a0), vec.at(b, values[5], b0), vec.at(c, values[8], c0)
    columns = [first * vec.lanes for first in range(2)]

    cells = [(vec.ahead(to_c, bld.mul(c_row, _INT(r))), j) for r in range(rows) for j in range(2)]
    masks = [vec.mask(first, width) for first in columns]
    sums = [_utils.alloca_once_value(bld, vec.all(0.0)) for _ in cells]  # which become registers
    for total in sums:
        bld.store(vec.all(0.0), total)
    with bld.if_then(bld.icmp_signed("!=", more, _INT(0))):
        for (row, j), total in zip(cells, sums, strict=True):
            bld.store(vec.load(vec.ahead(row, columns[j]), masks[j]), total)
    with _utils.for_range(bld, inner) as loop:
        row = vec.ahead(from_b, bld.mul(loop.index, b_row))
        pair = [vec.load(vec.ahead(row, columns[j]), masks[j]) for j in range(2)]
        column = vec.ahead(from_a, bld.mul(loop.index, a_inner))
        for r in range(rows):
            factor = vec.all(bld.load(vec.ahead(column, bld.mul(a_row, _INT(r)))))
            for j in range(2):
                total = sums[2 * r + j]
                bld.store(vec.fused(factor, pair[j], bld.load(total)), total)
    # Whole vectors apart: without AVX-512 masked stores are slow.
    with bld.if_else(bld.icmp_signed(">=", width, _INT(2 * vec.lanes))) as (full, partial):
        for branch, used in ((full, (None, None)), (partial, masks)):
            with branch:
                for (row, j), total in zip(cells, sums, strict=True):
                    vec.store(bld.load(total), vec.ahead(row, columns[j]), used[j])


_TILE_INTEGERS = (0, 2, 3, 4, 6, 7, 9, 10, 11, 12)


def combination(matrix: Sequence[Sequence[float]], adds: bool = False) -> Callable[..., None]:
    """Return a function that writes the rows of a constant matrix times the rows of ``x``, or adds them.

    It writes y[y0 + r y_row + j] = sum over k of matrix[r][k] x[x0 + k x_row + j] for j < width. Arrays are contiguous,
    and everything else counts numbers.
    """

    @_intrinsic  # type: ignore[untyped-decorator]
    def combine(typing: Any, x: Any, x0: Any, x_row: Any, y: Any, y0: Any, y_row: Any, width: Any) -> Any:
        def generate(context: Any, bld: Any, signature: Any, values: Sequence[Any]) -> Any:
            _, x0, x_row, _, y0, y_row, width = values
            vec = _Vectors(context, bld, y)
            from_x, to_y = vec.at(x, values[0], x0), vec.at(y, values[3], y0)

            def body(first: Any, mask: Any) -> None:
                used = [k for k in range(len(matrix[0])) if any(row[k] for row in matrix)]
                rows = {k: vec.load(vec.ahead(from_x, bld.add(first, bld.mul(x_row, _INT(k)))), mask) for k in used}
                for r, coefficients in enumerate(matrix):
                    place = vec.ahead(to_y, bld.add(first, bld.mul(y_row, _INT(r))))
                    total = vec.load(place, mask) if adds else None
                    for k, coefficient in enumerate(coefficients):
                        if coefficient:
                            total = _add(bld, vec, total, rows[k], float(coefficient))
                    vec.store(total, place, mask)

            vectors = bld.sdiv(width, _INT(vec.lanes))
            with _utils.for_range(bld, vectors) as loop:
                body(bld.mul(loop.index, _INT(vec.lanes)), None)
            first = bld.mul(vectors, _INT(vec.lanes))
            with bld.if_then(bld.icmp_signed("<", first, width)):
                body(first, vec.mask(0, bld.sub(width, first)))
            return context.get_dummy_value()

        i = _INDEX
        return types.void(x, i, i, y, i, i, i), generate

    function: Callable[..., None] = combine
    return function


def _add(bld: Any, vec: _Vectors, total: Any, row: Any, coefficient: float) -> Any:
    """Return ``total`` plus the coefficient times a row; a total of None is zero."""
    if total is None:
        return row if coefficient == 1 else bld.fmul(row, vec.all(coefficient))
    if coefficient in (1, -1):
        return bld.fadd(total, row) if coefficient == 1 else bld.fsub(total, row)
    return vec.fused(row, vec.all(coefficient), total)


def _apart() -> Callable[[], None]:
    @_intrinsic  # type: ignore[untyped-decorator]
    def mark(typing: Any) -> Any:
        def generate(context: Any, bld: Any, signature: Any, values: Sequence[Any]) -> Any:
            bld.function.attributes.add("noinline")
            return context.get_dummy_value()

        return types.void(), generate

    function: Callable[[], None] = mark
    return function


apart = _apart()
"""Keeps the function that calls this as one of its own: within a larger one LLVM may give up its vectors."""
