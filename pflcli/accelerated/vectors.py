"""Vector instructions for compiled loops, and sums of rows with constant coefficients.

The vectors are written out, and LLVM chooses the instructions of the CPU at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

_intrinsic: Any = intrinsic
_utils: Any = cgutils
_populate: Any = populate_array
_borrowed: Any = impl_ret_borrowed

_FEATURES: Any = llvmlite.binding.get_host_cpu_features()

FUSED = bool(_FEATURES.get("fma") or _FEATURES.get("neon"))
"""whether the CPU multiplies and adds in one instruction"""

WIDE = bool(_FEATURES.get("avx512f"))
"""whether it has vectors of 64 bytes"""

BYTES = 64 if WIDE else 32 if _FEATURES.get("avx2") else 16
"""bytes of a vector"""

PAIR = 2 * BYTES
"""bytes in two vectors"""

INT, INDEX = ir.IntType(64), types.int64
"""the type of integers, for LLVM and for Numba"""


class Vectors:
    """Instructions on vectors of the numbers of ``arrays``, Numba types, at builder ``bld``."""

    def __init__(self, context: Any, bld: Any, array: Any, lanes: int | None = None) -> None:
        self._context, self._bld = context, bld
        self._element = context.get_value_type(array.dtype)
        self.lanes = lanes or BYTES // (array.dtype.bitwidth // 8)
        self._type = ir.VectorType(self._element, self.lanes)
        self._name = f"v{self.lanes}f{array.dtype.bitwidth}"

    def at(self, array: Any, value: Any, offset: Any) -> Any:
        """Return the address of a number of an array."""
        return self._bld.gep(self._context.make_array(array)(self._context, self._bld, value).data, [offset])

    def ahead(self, address: Any, numbers: Any) -> Any:
        """Return the address so many numbers further on."""
        return self._bld.gep(address, [INT(numbers) if isinstance(numbers, int) else numbers])

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
        columns = ir.Constant(ir.VectorType(INT, self.lanes), [INT(first + lane) for lane in range(self.lanes)])
        return self._bld.icmp_signed("<", columns, self._spread(width, columns.type))

    def all_or_none(self, bit: Any) -> Any:
        """Return a mask that is the same everywhere."""
        return self._spread(bit, ir.VectorType(ir.IntType(1), self.lanes))

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

    def prefetch(self, address: Any) -> None:
        """Ask for what lies around an address to come into all caches, to be read."""
        place, integer = self._bld.bitcast(address, ir.IntType(8).as_pointer()), ir.IntType(32)
        self._call("llvm.prefetch.p0", ir.VoidType(), place, integer(0), integer(3), integer(1))

    def fused(self, a: Any, b: Any, c: Any) -> Any:
        """Return a b + c, rounded once where the CPU can do that: others would call a function for each number."""
        if not FUSED:
            return self.sum(self._bld.fmul(a, b), c)
        return self._call(f"llvm.fma.{self._name}", self._type, a, b, c)

    def sum(self, a: Any, b: Any) -> Any:
        """Return a + b, in its place: LLVM would add up several in an order that depends on the code around them."""
        return self._bld.fadd(a, b, flags=("nsz",))  # Numba gives its flags to those that have none

    def transposed(self, square: list[Any]) -> list[Any]:
        """Return the columns of as many vectors as one has numbers."""
        distance = 1
        while distance < self.lanes:
            for i in (i for i in range(self.lanes) if not i & distance):
                one, other = square[i], square[i + distance]
                # The numbers of the other vector come behind those of the one.
                low = [lane + (lane & distance and self.lanes - distance) for lane in range(self.lanes)]
                high = [lane + (self.lanes if lane & distance else distance) for lane in range(self.lanes)]
                square[i], square[i + distance] = self._pick(one, other, low), self._pick(one, other, high)
            distance *= 2
        return square

    def _pick(self, one: Any, other: Any, lanes: list[int]) -> Any:
        mask = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [ir.IntType(32)(lane) for lane in lanes])
        return self._bld.shuffle_vector(one, other, mask)

    def pairwise(self, vectors: Sequence[Any]) -> list[Any]:
        """Return the sums of the numbers of each vector, in their order, as vectors: neighbours are added first.

        There must be a power of two of vectors.
        """
        numbers = self.lanes  # which are still to be added up to one
        while numbers > 1:
            pairs = zip(vectors[::2], vectors[1::2] or [None], strict=True)
            vectors = [self._neighbours(first, second) for first, second in pairs]
            numbers //= 2
        return list(vectors)

    def _neighbours(self, first: Any, second: Any) -> Any:
        """Return the sums of neighbours in one or two vectors."""
        none = ir.Constant(first.type, ir.Undefined) if second is None else second
        count = first.type.count * (1 if second is None else 2)
        halves = [ir.Constant(ir.VectorType(ir.IntType(32), count // 2), list(range(i, count, 2))) for i in range(2)]
        even, odd = (self._bld.shuffle_vector(first, none, half) for half in halves)
        return self.sum(even, odd)

    def along(self, count: Any, body: Callable[[Any, Any], None]) -> None:
        """Write a loop over ``count`` numbers: ``body`` gets the first number of a vector, and a mask for the last."""
        vectors = self._bld.sdiv(count, INT(self.lanes))
        with _utils.for_range(self._bld, vectors) as loop:
            body(self._bld.mul(loop.index, INT(self.lanes)), None)
        first = self._bld.mul(vectors, INT(self.lanes))
        with self._bld.if_then(self._bld.icmp_signed("<", first, count)):
            body(first, self.mask(0, self._bld.sub(count, first)))

    def _call(self, name: str, result: Any, *arguments: Any) -> Any:
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        return self._bld.call(_utils.get_or_insert_function(self._bld.module, kind, name), arguments)


def combination(matrix: Sequence[Sequence[float]], adds: bool = False) -> Callable[..., None]:
    """Return a function that writes the rows of a constant matrix times the rows of ``x``, or adds them.

    It writes y[y0 + r y_row + j] = sum over k of matrix[r][k] x[x0 + k x_row + j] for j < width. Arrays are contiguous,
    and everything else counts numbers.
    """

    @_intrinsic  # type: ignore[untyped-decorator]
    def combine(typing: Any, x: Any, x0: Any, x_row: Any, y: Any, y0: Any, y_row: Any, width: Any) -> Any:
        def generate(context: Any, bld: Any, signature: Any, values: Sequence[Any]) -> Any:
            _, x0, x_row, _, y0, y_row, width = values
            vec = Vectors(context, bld, y)
            from_x, to_y = vec.at(x, values[0], x0), vec.at(y, values[3], y0)

            def body(first: Any, mask: Any) -> None:
                used = [k for k in range(len(matrix[0])) if any(row[k] for row in matrix)]
                rows = {k: vec.load(vec.ahead(from_x, bld.add(first, bld.mul(x_row, INT(k)))), mask) for k in used}
                for r, coefficients in enumerate(matrix):
                    place = vec.ahead(to_y, bld.add(first, bld.mul(y_row, INT(r))))
                    total = vec.load(place, mask) if adds else None
                    for k, coefficient in enumerate(coefficients):
                        if coefficient:
                            total = _add(bld, vec, total, rows[k], float(coefficient))
                    vec.store(vec.all(0.0) if total is None else total, place, mask)

            vec.along(width, body)
            return context.get_dummy_value()

        i = INDEX
        return types.void(x, i, i, y, i, i, i), generate

    function: Callable[..., None] = combine
    return function


def _add(bld: Any, vec: Vectors, total: Any, row: Any, coefficient: float) -> Any:
    """Return ``total`` plus the coefficient times a row; a total of None is zero."""
    if total is None:
        return row if coefficient == 1 else bld.fmul(row, vec.all(coefficient))
    if coefficient in (1, -1):
        return bld.fadd(total, row) if coefficient == 1 else bld.fsub(total, row)
    return vec.fused(row, vec.all(coefficient), total)


def _prefetch() -> Callable[..., None]:
    @_intrinsic  # type: ignore[untyped-decorator]
    def ask(typing: Any, x: Any, place: Any) -> Any:
        def generate(context: Any, bld: Any, signature: Any, values: Sequence[Any]) -> Any:
            vec = Vectors(context, bld, x)
            vec.prefetch(vec.at(x, *values))
            return context.get_dummy_value()

        return types.void(x, INDEX), generate

    function: Callable[..., None] = ask
    return function


prefetch = _prefetch()
"""``prefetch(x, place)`` asks for x[place], and what lies around it, to come into the cache, and does not wait."""


def _as_row() -> Callable[[Any], Any]:
    @_intrinsic  # type: ignore[untyped-decorator]
    def view(typing: Any, x: Any) -> Any:
        if x.layout != "C":
            return None  # Numba says which arguments have no such function
        row = x.copy(ndim=1)

        def generate(context: Any, bld: Any, signature: Any, values: Sequence[Any]) -> Any:
            array, result = context.make_array(x)(context, bld, values[0]), context.make_array(row)(context, bld)
            fields = {"data": array.data, "itemsize": array.itemsize, "meminfo": array.meminfo, "parent": array.parent}
            _populate(result, shape=[array.nitems], strides=[array.itemsize], **fields)
            return _borrowed(context, bld, row, result._getvalue())

        return row(x), generate

    function: Callable[[Any], Any] = view
    return function


as_row = _as_row()
"""``as_row(x)`` is a contiguous array as one row: functions that take rows compile once for arrays of all shapes."""
