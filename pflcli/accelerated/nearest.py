"""Exact nearest neighbours in many clients' stores, in one compiled loop.

The loop multiplies a few stored vectors at a time, read from the store without a copy, by all queries of a client while
they are in the cache, and computes norms in the same pass. For each query it keeps a list of the nearest vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from pflcli.accelerated.compiler import Array, compiled
from pflcli.accelerated.compiler import codegen as _utils
from pflcli.accelerated.instructions import INDEX, Vectors, dot_tile
from pflcli.accelerated.products import product_by_rows

_intrinsic: Any = intrinsic

_STORED_PER_BLOCK, _QUERIES_PER_BLOCK, _MAX_LANES = 64, 256, 16
"""Stored vectors and queries in one product, and numbers in the longest vector register."""

_HALF, _TWO, _INFINITY = np.float32(0.5), np.float32(2), np.float32(np.inf)
_dot = dot_tile(1)


def _list_insertion() -> Any:
    """Return a function that inserts a stored vector into the lists of nearest vectors of ``width`` queries.

    The nearness of the vector to query q is product[first + q] - half. The lists are columns: nearness[p width + q]
    decreases with p from 1 to k, ``rows`` contains the vectors' rows in the same layout, and nearness[q] is inf. Of
    equal vectors the one that was inserted first comes first.
    """

    @_intrinsic  # type: ignore[untyped-decorator]
    def insert(
        typing: Any, product: Any, first: Any, width: Any, half: Any, row: Any, nearness: Any, rows: Any, k: Any
    ) -> Any:
        def generate(context: Any, bld: Any, signature: Any, values: Sequence[Any]) -> Any:
            product_value, first, width, half, row, nearness_value, rows_value, k = values
            vec = Vectors(context, bld, nearness)
            half_of_all, row_of_all, bits = vec.all(half), vec.all(row), ir.IntType(vec.lanes)

            def body(q: Any, mask: Any) -> None:
                value = bld.fsub(vec.load(vec.at(product, product_value, bld.add(first, q))), half_of_all)
                last = bld.add(q, bld.mul(k, width))
                nearer = bld.fcmp_ordered(">", value, vec.load(vec.at(nearness, nearness_value, last)))
                is_any_nearer = bld.icmp_unsigned("!=", bld.bitcast(nearer, bits), bits(0))
                # Most vectors are not near enough to enter any list.
                with bld.if_then(is_any_nearer), _utils.for_range(bld, k) as place:
                    offset = bld.sub(last, bld.mul(place.index, width))
                    places = [vec.at(nearness, nearness_value, at) for at in (offset, bld.sub(offset, width))]
                    row_places = [vec.at(rows, rows_value, at) for at in (offset, bld.sub(offset, width))]
                    passes = [bld.fcmp_ordered(">", value, vec.load(at)) for at in places]
                    for (to, before), new in ((places, value), (row_places, row_of_all)):
                        moved = bld.select(passes[1], vec.load(before), new)
                        vec.store(bld.select(passes[0], moved, vec.load(to)), to)

            vec.along(width, body)
            return context.get_dummy_value()

        i, number = INDEX, nearness.dtype
        return types.void(product, i, i, number, number, nearness, rows, i), generate

    return insert


_insert = _list_insertion()


@compiled
def search(
    blob: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    z: NDArray[np.float32],
    bounds: NDArray[np.int64],
    inexact: float,
    distance: NDArray[np.float64],
    row: NDArray[np.int64],
) -> None:
    """Write the *squared* L2 distances (n, k) to the nearest stored vectors of each query, and their rows (n, k).

    The store of client c is ``sizes[c]`` vectors (d,) of float32 from byte ``starts[c]`` of the blob on. Its queries
    are rows bounds[c] to bounds[c + 1] of ``z`` (n, d). If a store has fewer than k vectors, the rest of ``distance``
    and ``row`` does not change. Distances less than ``inexact`` times |q|^2 + |x|^2 are computed again, from the
    difference of the vectors.
    """
    d = z.shape[1]
    queries = z.reshape(-1)
    most_queries, largest_store = 0, 0
    for client in range(len(sizes)):  # compiles in a tenth of the time of NumPy's functions
        most_queries = max(most_queries, bounds[client + 1] - bounds[client])
        largest_store = max(largest_store, sizes[client])
    widest = min(_QUERIES_PER_BLOCK, -(-most_queries // _MAX_LANES) * _MAX_LANES)
    product, query_half = np.zeros(_STORED_PER_BLOCK * widest, np.float32), np.empty(widest, np.float32)
    nearness = np.empty((distance.shape[1] + 1) * widest, np.float32)
    rows, half = np.empty_like(nearness), np.empty(largest_store, np.float32)
    for client in range(len(sizes)):
        stored = blob[starts[client] : starts[client] + 4 * d * sizes[client]].view(np.float32)
        k = min(distance.shape[1], sizes[client])
        for first in range(bounds[client], bounds[client + 1], _QUERIES_PER_BLOCK):
            n = min(_QUERIES_PER_BLOCK, bounds[client + 1] - first)
            _half_squares(queries, first, n, d, query_half, 0)
            _find(stored, sizes[client], queries, (first, n, d, k), half, product, nearness, rows)
            _write(stored, queries, (first, n, d, k), half, query_half, nearness, rows, inexact, distance, row)


@compiled
def _half_squares(x: Array, first: int, count: int, d: int, half: Array, to: int) -> None:
    """Write half of the squared norms of ``count`` rows of ``x`` (., d), from ``first`` on, into ``half[to:]``."""
    for i in range(count):
        start = (first + i) * d
        _dot(d, x, start, d, x, start, d, half, to + i, 1, 1, 1, 0)
        half[to + i] *= _HALF


@compiled
def _find(
    stored: Array,
    m: int,
    queries: Array,
    size: tuple[int, int, int, int],
    half: Array,
    product: Array,
    nearness: Array,
    rows: Array,
) -> None:
    """Fill the lists of the nearest of ``m`` stored vectors, and ``half`` (m,). ``size``: first query, n, d, k."""
    first_query, n, d, k = size
    width = -(-n // _MAX_LANES) * _MAX_LANES
    for place in range(k + 1):
        for q in range(width):
            # Columns beyond the queries accept no vector.
            nearness[place * width + q] = -_INFINITY if place > 0 and q < n else _INFINITY
    for first in range(0, m, _STORED_PER_BLOCK):
        count = min(_STORED_PER_BLOCK, m - first)
        _half_squares(stored, first, count, d, half, first)
        product_by_rows((count, n, d), stored, first * d, d, queries, first_query * d, d, product, 0, width, 0)
        for i in range(count):
            _insert(product, i * width, width, half[first + i], np.float32(first + i), nearness, rows, k)


@compiled
def _write(
    stored: Array,
    queries: Array,
    size: tuple[int, int, int, int],
    half: Array,
    query_half: Array,
    nearness: Array,
    rows: Array,
    inexact: float,
    distance: NDArray[np.float64],
    row: NDArray[np.int64],
) -> None:
    """Write the distances and rows of the lists, nearest first; of equal distances the first row comes first."""
    first, n, d, k = size
    width = -(-n // _MAX_LANES) * _MAX_LANES
    for q in range(n):
        query = first + q
        for p in range(k):
            nearness_of_row = nearness[(p + 1) * width + q]
            if nearness_of_row == -_INFINITY:
                break
            r = int(rows[(p + 1) * width + q])
            squared = np.float64(_TWO * (query_half[q] - nearness_of_row))
            if squared < inexact * _TWO * (half[r] + query_half[q]):
                squared = np.float64(0)
                for j in range(d):
                    difference = np.float64(queries[query * d + j]) - np.float64(stored[r * d + j])
                    squared += difference * difference
            place = p
            while place > 0 and (squared, r) < (distance[query, place - 1], row[query, place - 1]):
                distance[query, place] = distance[query, place - 1]
                row[query, place] = row[query, place - 1]
                place -= 1
            distance[query, place] = squared
            row[query, place] = r
