"""The bytes in which FAISS serialises exact L2 indexes, written and read without copies of the vectors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from pflcli.knn import indexes

_FLAT = b"IxF2"
"""The first bytes of a serialised exact L2 index; dimension (int32), rows (int64), ... and the vectors follow."""

_SHORTEST = 24
"""Bytes of kind, dimension and rows at the beginning of a header, and of the number of numbers at its end."""


def flat_pieces(stores: Sequence[NDArray[np.float32]]) -> tuple[list[bytes | memoryview], NDArray[np.int64]]:
    """Return exact L2 indexes over the rows of each store (n, d), in pieces of bytes, and their offsets (m + 1,).

    Bytes ``offsets[c]:offsets[c + 1]`` of the joined pieces are FAISS's serialisation of store c. Vectors are not
    copied; FAISS would copy them three times.
    """
    pieces: list[bytes | memoryview] = []
    offsets = [0]
    for z in stores:
        header = _header(*z.shape)
        pieces += [header, np.ascontiguousarray(z, dtype="<f4").reshape(-1).view(np.uint8).data]
        offsets.append(offsets[-1] + len(header) + z.nbytes)
    return pieces, np.asarray(offsets)


def flat_indexes(stores: Sequence[NDArray[np.float32]]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the indexes and offsets of ``flat_pieces``, with the bytes in one array."""
    pieces, offsets = flat_pieces(stores)
    return np.frombuffer(bytearray().join(pieces), np.uint8), offsets


def _header(rows: int, dimension: int) -> bytes:
    header = bytearray(_empty_flat(dimension))
    header[8:16] = rows.to_bytes(8, "little")
    header[-8:] = (rows * dimension).to_bytes(8, "little")
    return bytes(header)


@cache
def _empty_flat(dimension: int) -> bytes:
    faiss = indexes.faiss()
    blob: bytes = faiss.serialize_index(faiss.IndexFlatL2(dimension)).tobytes()
    return blob


def flat_vectors(blob: NDArray[np.uint8]) -> NDArray[np.float32] | None:
    """Return the vectors (n, d) of a serialised exact L2 index, without a copy; None for other kinds of index."""
    first = bytes(blob[:16])
    if first[:4] != _FLAT or len(first) < 16:
        return None
    dimension, rows = int.from_bytes(first[4:8], "little", signed=True), int.from_bytes(first[8:], "little")
    start = len(blob) - 4 * rows * dimension
    if dimension <= 0 or start < 8 or int.from_bytes(bytes(blob[start - 8 : start]), "little") != rows * dimension:
        return None  # FAISS then reports the error
    return np.frombuffer(blob[start:], dtype="<f4").reshape(rows, dimension)


def flat_starts(
    blob: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    stores: NDArray[np.int64],
    sizes: NDArray[np.int64],
    dimension: int,
) -> NDArray[np.int64] | None:
    """Return the byte of the blob where the vectors of each of these ``stores`` (m,) begin; None unless all are exact.

    Bytes ``offsets[c]:offsets[c + 1]`` must be a serialised exact L2 index over at least ``sizes[i]`` vectors of this
    ``dimension`` for c = ``stores[i]``. A store whose size is 0 may be anything.
    """
    used = np.flatnonzero(sizes > 0)
    first, last = offsets[stores[used]], offsets[stores[used] + 1]
    if (last - first < _SHORTEST).any():
        return None
    header = blob[first[:, None] + np.arange(16)]
    width, rows = (np.ascontiguousarray(header[:, at:]).view(kind)[:, 0] for at, kind in ((4, "<i4"), (8, "<i8")))
    if not ((header[:, :4] == np.frombuffer(_FLAT, np.uint8)).all() and (width == dimension).all()):
        return None
    if not ((rows >= sizes[used]) & (rows <= (last - first - _SHORTEST) // (4 * dimension))).all():
        return None
    starts = np.zeros(len(stores), np.int64)
    starts[used] = last - 4 * dimension * rows
    numbers = blob[starts[used, None] + np.arange(-8, 0)].view("<i8")[:, 0]
    return starts if (numbers == rows * dimension).all() else None
