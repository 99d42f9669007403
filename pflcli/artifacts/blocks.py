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
    is_valid = (
        bounds.ndim == 1
        and bounds.dtype == np.int64
        and len(bounds) >= 1
        and bounds[0] == 0
        and bool((np.diff(bounds) >= 0).all())
    )
    if not is_valid or any(length != bounds[-1] for length in lengths):
        raise InputError(f"{where} is inconsistent: its offsets do not match its arrays")


def check_labels(where: str, y: NDArray[np.int64], classes: int) -> None:
    """Raise InputError unless ``y`` (n,) are int64 labels 0..``classes`` - 1."""
    if y.ndim != 1 or y.dtype != np.int64 or (len(y) and not (y.min() >= 0 and y.max() < classes)):
        raise InputError(f"{where} is inconsistent: a label is outside 0..{classes - 1}")


def check_finite(where: str, **arrays: NDArray[Any]) -> None:
    """Raise InputError unless the arrays hold floating-point numbers of this machine that are finite."""
    for name, values in arrays.items():
        if values.dtype.kind != "f" or not values.dtype.isnative or not np.isfinite(values).all():
            raise InputError(f"{where} is inconsistent: {name} has a number that is not finite")


def check_integers(where: str, **arrays: NDArray[Any]) -> None:
    """Raise InputError unless the arrays are lists (n,) of int64 numbers."""
    for name, values in arrays.items():
        if values.ndim != 1 or values.dtype != np.int64:
            raise InputError(f"{where} is inconsistent: {name} must be a list of int64 numbers")


def h5_bytes(arrays: Mapping[str, NDArray[Any]], attrs: Mapping[str, Any] | None = None) -> bytes:
    """Return an HDF5 file's bytes, built in memory: on a full disk h5py would end the process.

    ``arrays`` maps ``group/name`` to an array; the same arrays always give the same bytes.
    """
    import h5py

    memory = io.BytesIO()
    with h5py.File(memory, "w", locking=False) as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values, track_times=False)
        for key, value in (attrs or {}).items():
            file.attrs[key] = value
    return memory.getvalue()


def require_plain(group: Any, budget: int) -> None:
    """Raise ValueError unless an HDF5 file has the form that ``h5_bytes`` writes: groups of datasets, all in the file.

    ``budget`` is the file's size in bytes; the datasets together may not declare more. Soft and external links, data in
    other files, and virtual datasets are refused.
    """
    import h5py

    groups = [group]
    declared = 0
    while groups:
        group = groups.pop()
        for name in group:
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise ValueError(f"'{name}' is a link")
            item = group[name]
            if isinstance(item, h5py.Group):
                if group.parent != group:
                    raise ValueError(f"'{name}' is a group within a group")  # groups could form an endless ring
                groups.append(item)
                continue
            if not isinstance(item, h5py.Dataset) or item.external or item.is_virtual:
                raise ValueError(f"the data of '{name}' are not in this file")
            declared += item.nbytes
    if declared > budget:
        raise ValueError(f"its datasets declare {declared} bytes, but the file has {budget}")
