"""Flat arrays sorted by client, with offsets: block i is rows ``offsets[i]:offsets[i + 1]``."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.errors import InputError

SPLITS = ("train", "validation", "test")


def offsets(sizes: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Return the offsets (m + 1,) of blocks of the given sizes (m,)."""
    return np.concatenate([[0], np.cumsum(np.asarray(sizes, dtype=np.int64))]).astype(np.int64)


def check(where: str, bounds: NDArray[np.int64], *lengths: int) -> None:
    """Raise InputError unless ``bounds`` are valid offsets over arrays of the given lengths."""
    sound = bounds.ndim == 1 and len(bounds) >= 1 and bounds[0] == 0 and bool((np.diff(bounds) >= 0).all())
    if not sound or any(length != bounds[-1] for length in lengths):
        raise InputError(f"{where} is inconsistent: its offsets do not match its arrays")


def h5_bytes(arrays: Mapping[str, NDArray[Any]], attrs: Mapping[str, Any] | None = None) -> bytes:
    """Return an HDF5 file's bytes, built in memory: on a full disk h5py would end the process.

    ``arrays`` maps ``group/name`` to an array; the same arrays always give the same bytes.
    """
    import h5py

    memory = io.BytesIO()
    with h5py.File(memory, "w") as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values, track_times=False)
        for key, value in (attrs or {}).items():
            file.attrs[key] = value
    return memory.getvalue()
