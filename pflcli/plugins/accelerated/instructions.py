"""Vector instructions for compiled loops: sums of rows, tiles of matrix products, and many small systems at once.

The functions generate vector operations in LLVM's language, and LLVM chooses the instructions of this CPU. From scalar
loops it would keep neither a tile of a product nor the partial sums of a few lanes in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from inspect import Parameter, Signature
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pflcli.plugins.accelerated.compiler import borrowed as _borrowed
from pflcli.plugins.accelerated.compiler import codegen as _utils
from pflcli.plugins.accelerated.compiler import populate as _populate

_intrinsic: Any = intrinsic

_FEATURES: Any = llvmlite.binding.get_host_cpu_features()

HAS_FMA = bool(_FEATURES.get("fma") or _FEATURES.get("neon"))
"""whether the CPU multiplies and adds in one instruction"""

HAS_AVX512 = bool(_FEATURES.get("avx512f"))
"""whether it has vectors of 64 bytes"""

VECTOR_BYTES = 64 if HAS_AVX512 else 32 if _FEATURES.get("avx2") else 16
"""bytes of a vector"""

PAIR_BYTES = 2 * VECTOR_BYTES
"""bytes in two vectors"""

INT, INDEX = ir.IntType(64), types.int64
"""the type of integers, for LLVM and for Numba"""


class Vectors:
    """Generates operations on vectors of the element type of ``array``, a Numba type, at the builder ``bld``."""

    def __init__(self, context: Any, bld: Any, array: Any, lanes: int | None = None) -> None:
        self._context, self._bld, self._array = context, bld, array
        self._element = context.get_value_type(array.dtype)
        self.lanes = lanes or VECTOR_BYTES // (array.dtype.bitwidth // 8)
        self._type = ir.VectorType(self._element, self.lanes)
        self._name = f"v{self.lanes}f{array.dtype.bitwidth}"

    def at(self, array: Any, value: Any, offset: Any) -> Any:
        """Return the address of a number of an array."""
        return self._bld.gep(self._context.make_array(array)(self._context, self._bld, value).data, [offset])

    def ahead(self, address: Any, numbers: Any) -> Any:
        """Return the address of the number that is ``numbers`` positions further on."""
        return self._bld.gep(address, [INT(numbers) if isinstance(numbers, int) else numbers])

    def all(self, number: Any) -> Any:
        """Return a vector that repeats a number, which may be a Python float."""
        if isinstance(number, float):
            return ir.Constant(self._type, [ir.Constant(self._element, number)] * self.lanes)
        return self._spread(number, self._type)

    def shorter(self, lanes: int) -> Vectors:
        """Return operations on vectors of at most so many numbers."""
        return Vectors(self._context, self._bld, self._array, min(self.lanes, lanes))

    def sums(self, count: int) -> list[Any]:
        """Return so many variables of vectors, which are zero now and become registers."""
        variables = [_utils.alloca_once_value(self._bld, self.all(0.0)) for _ in range(count)]
        for variable in variables:
            self._bld.store(self.all(0.0), variable)
        return variables

    def _spread(self, number: Any, vector: Any) -> Any:
        none, zero = ir.Constant(vector, ir.Undefined), ir.IntType(32)(0)
        first = self._bld.insert_element(none, number, zero)
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [zero] * self.lanes)
        return self._bld.shuffle_vector(first, none, zeros)

    def mask(self, first: int, width: Any) -> Any:
        """Return a mask of the numbers before column ``width``, for a vector that begins at column ``first``."""
        columns = ir.Constant(ir.VectorType(INT, self.lanes), [INT(first + lane) for lane in range(self.lanes)])
        return self._bld.icmp_signed("<", columns, self._spread(width, columns.type))

    def all_or_none(self, bit: Any) -> Any:
        """Return a mask that repeats a bit."""
        return self._spread(bit, ir.VectorType(ir.IntType(1), self.lanes))

    def load(self, address: Any, mask: Any = None) -> Any:
        """Return the vector at an address, with zeros where the ``mask`` is not set."""
        place = self._bld.bitcast(address, self._type.as_pointer())
        if mask is None:
            return self._bld.load(place, align=4)
        arguments = (place, ir.IntType(32)(4), mask, self.all(0.0))
        return self._call(f"llvm.masked.load.{self._name}.p0", self._type, *arguments)

    def store(self, vector: Any, address: Any, mask: Any = None) -> None:
        """Write a vector to an address, where the ``mask`` is set."""
        place = self._bld.bitcast(address, self._type.as_pointer())
        if mask is None:
            self._bld.store(vector, place, align=4)
        else:
            arguments = (vector, place, ir.IntType(32)(4), mask)
            self._call(f"llvm.masked.store.{self._name}.p0", ir.VoidType(), *arguments)

    def prefetch(self, address: Any) -> None:
        """Prefetch the cache line of an address into all caches, for reading."""
        place, integer = self._bld.bitcast(address, ir.IntType(8).as_pointer()), ir.IntType(32)
        self._call("llvm.prefetch.p0", ir.VoidType(), place, integer(0), integer(3), integer(1))

    def fused(self, a: Any, b: Any, c: Any) -> Any:
        """Return a b + c, rounded once if the CPU has such an instruction; others would call a function per number."""
        if not HAS_FMA:
            return self.sum(self._bld.fmul(a, b), c)
        return self._call(f"llvm.fma.{self._name}", self._type, a, b, c)

    def sum(self, a: Any, b: Any) -> Any:
        """Return a + b. LLVM does not reorder such sums, as it would depending on the surrounding code."""
        return self._bld.fadd(a, b, flags=("nsz",))  # Numba adds flags to operations without any

    def transposed(self, square: list[Any]) -> list[Any]:
        """Return the columns of a square: as many vectors as each one has numbers."""
        distance = 1
        while distance < self.lanes:
            for i in (i for i in range(self.lanes) if not i & distance):
                one, other = square[i], square[i + distance]
                # Indices of the numbers of ``other`` follow those of ``one``.
                low = [lane + (lane & distance and self.lanes - distance) for lane in range(self.lanes)]
                high = [lane + (self.lanes if lane & distance else distance) for lane in range(self.lanes)]
                square[i], square[i + distance] = self._pick(one, other, low), self._pick(one, other, high)
            distance *= 2
        return square

    def _pick(self, one: Any, other: Any, lanes: list[int]) -> Any:
        mask = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [ir.IntType(32)(lane) for lane in lanes])
        return self._bld.shuffle_vector(one, other, mask)

    def pairwise(self, vectors: Sequence[Any]) -> list[Any]:
        """Return the sum of the numbers of each vector, in order, as vectors. Neighbours are added first.

        The number of vectors must be a power of two.
        """
        numbers = self.lanes  # still to be added up, per vector
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
        """Generate a loop over ``count`` numbers. ``body`` gets the first index of a vector, and its mask."""
        vectors = self._bld.sdiv(count, INT(self.lanes))
        with _utils.for_range(self._bld, vectors) as loop:
            body(self._bld.mul(loop.index, INT(self.lanes)), None)
        first = self._bld.mul(vectors, INT(self.lanes))
        with self._bld.if_then(self._bld.icmp_signed("<", first, count)):
            body(first, self.mask(0, self._bld.sub(count, first)))

    def _call(self, name: str, result: Any, *arguments: Any) -> Any:
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        return self._bld.call(_utils.get_or_insert_function(self._bld.module, kind, name), arguments)


def _generated(kinds: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that turns a generator of instructions into a function for compiled loops.

    ``kinds`` has a character for each argument of that function: ``x`` for a contiguous array, ``f`` for a number of
    the type of arrays, ``i`` for an integer. An index into an array follows it. The generator gets ``Vectors``, the
    builder, and the arguments, with an address in place of an array and its index.
    """

    def decorate(generate: Callable[..., None]) -> Callable[..., None]:
        def instructions(typing: Any, *given: Any) -> Any:
            array = given[kinds.rindex("x")]

            def call(context: Any, bld: Any, signature: Any, values: Sequence[Any]) -> Any:
                vec, rest = Vectors(context, bld, array), iter(zip(kinds, given, values, strict=True))
                arguments = [vec.at(of, value, next(rest)[2]) if kind == "x" else value for kind, of, value in rest]
                generate(vec, bld, *arguments)
                return context.get_dummy_value()

            types_of = {"i": INDEX, "f": array.dtype}
            return types.void(*(types_of.get(kind, of) for kind, of in zip(kinds, given, strict=True))), call

        named = [Parameter(f"{kind}{i}", Parameter.POSITIONAL_ONLY) for i, kind in enumerate(f"t{kinds}")]
        instructions.__signature__ = Signature(named)  # type: ignore[attr-defined]
        function: Callable[..., None] = _intrinsic(instructions)
        return function

    return decorate


def combination(matrix: Sequence[Sequence[float]], adds: bool = False) -> Callable[..., None]:
    """Return a function that writes the product of a constant matrix and the rows of ``x``, or adds it.

    Its arguments are x, x0, x_row, y, y0, y_row and width. It writes y[y0 + r y_row + j] = sum over k of matrix[r][k]
    x[x0 + k x_row + j] for j < width. Arrays are contiguous; all other arguments are in numbers.
    """

    @_generated("xiixiii")
    def combine(vec: Vectors, bld: Any, from_x: Any, x_row: Any, to_y: Any, y_row: Any, width: Any) -> None:
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

    return combine


def _add(bld: Any, vec: Vectors, total: Any, row: Any, coefficient: float) -> Any:
    """Return ``total`` plus the coefficient times a row; a total of None is zero."""
    if total is None:
        return row if coefficient == 1 else bld.fmul(row, vec.all(coefficient))
    if coefficient in (1, -1):
        return bld.fadd(total, row) if coefficient == 1 else bld.fsub(total, row)
    return vec.fused(row, vec.all(coefficient), total)


@_generated("xi")
def prefetch(vec: Vectors, bld: Any, address: Any) -> None:
    """``prefetch(x, place)`` starts to load the cache line of x[place] into the cache, and does not wait for it."""
    vec.prefetch(address)


def _as_row() -> Callable[[Any], Any]:
    @_intrinsic  # type: ignore[untyped-decorator]
    def view(typing: Any, x: Any) -> Any:
        if x.layout != "C":
            return None  # Numba then reports the unsupported arguments
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
"""``as_row(x)`` is a contiguous array as one row. Functions that take rows compile once for arrays of all shapes."""


MAX_TILE_ROWS = 6 if VECTOR_BYTES == 32 else 14
"""Rows of the largest tile: a tile of two vectors per row must fit into 16 or 32 registers."""

DOT_ROWS = (3, 2) if VECTOR_BYTES == 32 else (6, 5, 4)
"""Rows of the tiles of vectors along the inner index."""

DOT_COLUMNS = 4
"""columns of those tiles"""


@_generated("iixiiixiixiiii")
def tile(vec: Vectors, bld: Any, rows: Any, *arguments: Any) -> None:
    """``tile(rows, inner, a, a0, a_row, a_inner, b, b0, b_row, c, c0, c_row, width, more)`` multiplies ``rows`` rows.

    They are rows of ``a``, one or an even number up to ``MAX_TILE_ROWS``, by two vectors of each row of ``b``.
    It writes c[c0 + r c_row + j] = sum over k < inner of a[a0 + r a_row + k a_inner] b[b0 + k b_row + j] for r < rows
    and j < width, where ``width`` is at most two vectors; with ``more`` it adds the sum to what is there. Arrays are
    contiguous; all other arguments are in numbers.
    """
    sizes = (1, *range(2, MAX_TILE_ROWS + 1, 2))
    _switch(bld, rows, sizes, lambda count: _generate_tile(count, vec, bld, *arguments))


def _switch(bld: Any, number: Any, cases: Iterable[int], generate: Callable[[int], None]) -> None:
    """Generate a switch over some values of a number; others do nothing."""
    after = bld.append_basic_block("after")
    choice = bld.switch(number, after)
    for case in cases:
        choice.add_case(INT(case), block := bld.append_basic_block(f"case{case}"))
        bld.position_at_end(block)
        generate(case)
        bld.branch(after)
    bld.position_at_end(after)


def _generate_tile(
    rows: int,
    vec: Vectors,
    bld: Any,
    inner: Any,
    from_a: Any,
    a_row: Any,
    a_inner: Any,
    from_b: Any,
    b_row: Any,
    to_c: Any,
    c_row: Any,
    width: Any,
    more: Any,
) -> None:
    """Generate ``tile`` for so many rows."""
    # Hide the stride from LLVM, which would otherwise keep a pointer per row and run out of registers.
    a_inner = bld.asm(ir.FunctionType(INT, [INT]), "", "=r,0", [a_inner], False)
    columns = [first * vec.lanes for first in range(2)]

    cells = [(vec.ahead(to_c, bld.mul(c_row, INT(r))), j) for r in range(rows) for j in range(2)]
    masks = [vec.mask(first, width) for first in columns]
    sums = vec.sums(len(cells))
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

    if HAS_AVX512:
        write(masks)
        return
    # Store whole vectors without a mask: without AVX-512 masked stores are slow.
    with bld.if_else(bld.icmp_signed(">=", width, INT(2 * vec.lanes))) as (full, partial):
        with full:
            write((None, None))
        with partial:
            write(masks)


def dot_tile(height: int) -> Callable[..., None]:
    """Return a function that multiplies up to ``height`` rows of ``a`` with up to ``DOT_COLUMNS`` rows of ``b``.

    Its arguments are inner, a, a0, a_row, b, b0, b_row, c, c0, c_row, rows, width and more. It writes c[c0 + r c_row +
    j] = sum over k < inner of a[a0 + r a_row + k] b[b0 + j b_row + k] for r < rows and j < width; with ``more`` it adds
    the sum to what is there. Arrays are contiguous; all other arguments are in numbers. Fewer rows take as long as all.
    """

    @_generated("ixiixiixiiiii")
    def multiply(vec: Vectors, bld: Any, inner: Any, a: Any, a_row: Any, b: Any, b_row: Any, *into: Any) -> None:
        to_c, c_row, rows, width, more = into
        from_a, from_b = _rows(vec, bld, a, a_row, height, rows), _rows(vec, bld, b, b_row, DOT_COLUMNS, width)
        sums = _generate_dots(vec, bld, inner, from_a, from_b)
        part = vec.shorter(DOT_COLUMNS)
        for r, row in enumerate(_rows(part, bld, to_c, c_row, height, rows)):
            with bld.if_then(bld.icmp_signed("<", INT(r), rows)):
                totals = [bld.load(total) for total in sums[r]]
                for i, total in enumerate(vec.pairwise(totals)):
                    place, mask = part.ahead(row, i * part.lanes), part.mask(i * part.lanes, width)
                    before = part.load(place, bld.and_(mask, part.all_or_none(bld.icmp_signed("!=", more, INT(0)))))
                    part.store(part.sum(before, total), place, mask)

    return multiply


def _rows(vec: Vectors, bld: Any, first: Any, stride: Any, count: int, existing: Any) -> list[Any]:
    """Return the addresses of ``count`` rows. For rows that do not exist, return the last existing one."""
    last = bld.sub(existing, INT(1))
    places = [bld.select(bld.icmp_signed("<", INT(r), existing), INT(r), last) for r in range(count)]
    return [vec.ahead(first, bld.mul(stride, place)) for place in places]


def _generate_dots(vec: Vectors, bld: Any, inner: Any, from_a: list[Any], from_b: list[Any]) -> list[list[Any]]:
    """Generate the multiplication of rows, and return the variable of a vector of sums per row and column."""
    sums = [vec.sums(len(from_b)) for _ in from_a]

    def body(first: Any, mask: Any) -> None:
        columns = [vec.load(vec.ahead(row, first), mask) for row in from_b]
        for row, totals in zip(from_a, sums, strict=True):
            factor = vec.load(vec.ahead(row, first), mask)
            for column, total in zip(columns, totals, strict=True):
                bld.store(vec.fused(factor, column, bld.load(total)), total)

    vec.along(inner, body)
    return sums


@_generated("xiixiiii")
def transpose_square(
    vec: Vectors, bld: Any, from_x: Any, x_row: Any, to_y: Any, y_row: Any, rows: Any, width: Any
) -> None:
    """``transpose_square(x, x0, x_row, y, y0, y_row, rows, width)`` writes a transpose.

    It writes y[y0 + j y_row + i] = x[x0 + i x_row + j] for i < rows and j < width, where both are at most one vector.
    Arrays are contiguous; all other arguments are in numbers.
    """

    def copy(masks: Callable[[int, Any, Any], Any]) -> None:
        of_x = [vec.ahead(from_x, bld.mul(x_row, INT(i))) for i in range(vec.lanes)]
        square = [vec.load(place, masks(i, rows, width)) for i, place in enumerate(of_x)]
        for j, column in enumerate(vec.transposed(square)):
            vec.store(column, vec.ahead(to_y, bld.mul(y_row, INT(j))), masks(j, width, rows))

    def mask(index: int, count: Any, width: Any) -> Any:
        return vec.mask(0, bld.select(bld.icmp_signed("<", INT(index), count), width, INT(0)))

    full = bld.and_(*(bld.icmp_signed("==", size, INT(vec.lanes)) for size in (rows, width)))
    with bld.if_else(full) as (square_of_lanes, part):
        with square_of_lanes:
            copy(lambda index, count, width: None)
        with part:
            copy(mask)


_ROWS_AT_ONCE = 4
"""Rows that are computed at the same time, so that no operation waits for the one before."""


def _elimination(*, scales: bool) -> Callable[..., None]:
    @_generated("ixiiixiixiiii")
    def eliminate(vec: Vectors, bld: Any, count: Any, a: Any, a_row: Any, a_step: Any, *others: Any) -> None:
        from_b, b_step, c, c_row, rows, width = others

        def rows_from(first: Any, together: int) -> None:
            places = [bld.add(first, INT(r)) for r in range(together)]
            from_a, to_c = ([vec.ahead(x, bld.mul(row, r)) for r in places] for x, row in ((a, a_row), (c, c_row)))

            def body(lane: Any, mask: Any) -> None:
                sums = vec.sums(together)
                with _utils.for_range(bld, count) as loop:
                    place = bld.add(lane, bld.mul(loop.index, a_step))
                    factor = vec.load(vec.ahead(from_b, bld.add(lane, bld.mul(loop.index, b_step))), mask)
                    for row, total in zip(from_a, sums, strict=True):
                        bld.store(vec.fused(vec.load(vec.ahead(row, place), mask), factor, bld.load(total)), total)
                next_b = bld.add(lane, bld.mul(count, b_step))
                scale = vec.load(vec.ahead(from_b, next_b), mask) if scales else None
                for row, total in zip(to_c, sums, strict=True):
                    target = vec.ahead(row, lane)
                    rest = bld.fsub(vec.load(target, mask), bld.load(total))
                    vec.store(bld.fmul(rest, scale) if scales else rest, target, mask)

            vec.along(width, body)

        groups = bld.sdiv(rows, INT(_ROWS_AT_ONCE))
        with _utils.for_range(bld, groups) as loop:
            rows_from(bld.mul(loop.index, INT(_ROWS_AT_ONCE)), _ROWS_AT_ONCE)
        first = bld.mul(groups, INT(_ROWS_AT_ONCE))
        _switch(bld, bld.sub(rows, first), range(1, _ROWS_AT_ONCE), lambda rest: rows_from(first, rest))

    return eliminate


minus_products = _elimination(scales=False)
"""``minus_products(count, a, a0, a_row, a_step, b, b0, b_step, c, c0, c_row, rows, width)`` subtracts sums of products
from ``rows`` rows of numbers, lane by lane.

From c[c0 + r c_row + j] it subtracts the sum over p < count of a[a0 + r a_row + p a_step + j] b[b0 + p b_step + j], for
r < rows and j < width. Arrays are contiguous; all other arguments are in numbers.
"""

solve = _elimination(scales=True)
"""``solve`` does the same as ``minus_products``, then multiplies by the next number of b, b[b0 + count b_step + j]."""


@_generated("fxixixii")
def products(vec: Vectors, bld: Any, factor: Any, from_a: Any, from_b: Any, to_c: Any, width: Any) -> None:
    """``products(factor, a, a0, b, b0, c, c0, width)`` writes c[c0 + j] = factor a[a0 + j] b[b0 + j] for j < width."""
    scale = vec.all(factor)

    def body(lane: Any, mask: Any) -> None:
        first, second = (vec.load(vec.ahead(place, lane), mask) for place in (from_a, from_b))
        vec.store(bld.fmul(bld.fmul(first, scale), second), vec.ahead(to_c, lane), mask)

    vec.along(width, body)
