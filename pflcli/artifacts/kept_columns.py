"""Columns that samples keep and that are no features: words (n,) by column, empty where a value is missing.

In HDF5, ``kept`` (n, k) int64 are rows of ``kept_words`` (w,), for the columns ``kept_columns`` (k,); names are UTF-8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.errors import InputError

Kept = Mapping[str, NDArray[np.str_]]


def encode(kept: Kept) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file, by name; none without columns."""
    if not kept:
        return {}
    words, rows = np.unique(np.stack([*kept.values()], axis=1), return_inverse=True)
    return {
        "kept": rows.reshape(-1, len(kept)).astype(np.int64),
        "kept_columns": np.char.encode(np.asarray([*kept], np.str_), "utf-8"),
        "kept_words": np.char.encode(words, "utf-8"),
    }


def read(file: Any, where: str, count: int) -> dict[str, NDArray[np.str_]]:
    """Read the columns of ``count`` samples; raises InputError, which names ``where``, if arrays are inconsistent."""
    if "kept" not in file:
        return {}
    rows = file["kept"][...]
    columns, words = (np.asarray(file[name].asstr("utf-8")[...], np.str_) for name in ("kept_columns", "kept_words"))
    if rows.dtype != np.int64 or rows.shape != (count, len(columns)) or len({*columns.tolist()}) < len(columns):
        raise InputError(f"{where} is inconsistent: kept must be an int64 number for each sample and kept column")
    if rows.size and not (rows.min() >= 0 and rows.max() < len(words)):
        raise InputError(f"{where} is inconsistent: a kept value is outside 0..{len(words) - 1}")
    return dict(zip(columns.tolist(), words[rows].T, strict=True))


def select(kept: Kept, rows: NDArray[np.int64]) -> dict[str, NDArray[np.str_]]:
    """Return the columns of the samples at ``rows``."""
    return {column: words[rows] for column, words in kept.items()}


def join(*parts: tuple[Kept, int]) -> dict[str, NDArray[np.str_]]:
    """Return the columns of several sets of so many samples; a column that one of them lacks is missing there."""
    columns = dict.fromkeys(column for kept, _ in parts for column in kept)
    return {
        column: np.concatenate([kept[column] if column in kept else np.full(count, "") for kept, count in parts])
        for column in columns
    }
