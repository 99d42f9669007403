"""Exact nearest neighbours in many clients' stores, in one compiled loop.

A few stored vectors at a time meet all queries of a client while they are in the cache, straight from where the store
lies. Norms come from the same pass. For each query the loop keeps a list of the nearest so far.
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

_STORED, _QUERIES, _LANES = 64, 256, 16
"""Stored vectors and queries that meet at a time, and numbers in the longest vector."""

_HALF, _TWO, _INFINITY = np.float32(0.5), np.float32(2), np.float32(np.inf)
_dot = dot_tile(1)


def _list_insertion() -> Any:
    """Return a function that lets one stored vector into the lists of the nearest of ``width`` queries.

    Its nearness to query q is product[first + q] - half. Lists are columns: nearness[p width + q] falls with p from 1
    to k, ``rows`` lies beside it, and nearness[q] is inf. Of equal vectors the first to come stays before the others.
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
                # Soon most vectors are nearer to no query of a block than what its lists have.
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

    The store of client c is ``sizes[c]`` vectors (d,) of float32 from byte ``starts[c]`` of the blob on; its queries
    are rows bounds[c] to bounds[c + 1] of ``z`` (n, d). What a store has not stays as it was in ``distance`` and
    ``row``. Distances below the share ``inexact`` of |q|^2 + |x|^2 are computed again, from the difference.
    """
    d = z.shape[1]
    queries = z.reshape(-1)
    most_queries, largest_store = 0, 0
    for client in range(len(sizes)):  # in a loop, which takes a tenth of the time of NumPy's functions to compile
        most_queries = max(most_queries, bounds[client + 1] - bounds[client])
        largest_store = max(largest_store, sizes[client])
    widest = min(_QUERIES, -(-most_queries // _LANES) * _LANES)
    product, query_half = np.zeros(_STORED * widest, np.float32), np.empty(widest, np.float32)
    nearness = np.empty((distance.shape[1] + 1) * widest, np.float32)
    rows, half = np.empty_like(nearness), np.empty(largest_store, np.float32)
    for client in range(len(sizes)):
        stored = blob[starts[client] : starts[client] + 4 * d * sizes[client]].view(np.float32)
        k = min(distance.shape[1], sizes[client])
        for first in range(bounds[client], bounds[client + 1], _QUERIES):
            n = min(_QUERIES, bounds[client + 1] - first)
            _half_squares(queries, first, n, d, query_half, 0)
            _find(stored, sizes[client], queries, (first, n, d, k), half, product, nearness, rows)
            _write(stored, queries, (first, n, d, k), half, query_half, nearness, rows, inexact, distance, row)


@compiled
def _half_squares(x: Array, first: int, count: int, d: int, half: Array, to: int) -> None:
    """Write half the squared norms of ``count`` rows of ``x`` (., d) from ``first`` on to ``half`` from ``to`` on."""
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
    """Fill the lists of the nearest of ``m`` stored vectors, and ``half`` (m,); ``size``: the first query, n, d, k."""
    first_query, n, d, k = size
    width = -(-n // _LANES) * _LANES
    for place in range(k + 1):
        for q in range(width):
            # Columns beyond the queries take nothing.
            nearness[place * width + q] = -_INFINITY if place > 0 and q < n else _INFINITY
    for first in range(0, m, _STORED):
        count = min(_STORED, m - first)
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
    """Write the distances and rows of lists, nearest first; ties to the first row."""
    first, n, d, k = size
    width = -(-n // _LANES) * _LANES
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
