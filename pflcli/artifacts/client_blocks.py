"""Arrays of all clients, sorted by client or by client and split; block i is rows ``offsets[i]:offsets[i + 1]``.

Large arrays are read in pieces, and a ``LazyRows`` sorts samples without a second copy in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.errors import InputError
from pflcli.core.tasks import CLASSES, Labels

PIECE_BYTES = 1 << 23
"""Bytes of an array that are checked or copied at a time."""


@dataclass(frozen=True)
class LazyRows:
    """The rows ``rows`` (n,) of ``source``, converted to ``dtype``, copied only when they are indexed."""

    source: NDArray[Any]
    rows: NDArray[np.int64]
    dtype: np.dtype[Any]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return (len(self.rows), *self.source.shape[1:])

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.source.ndim

    @property
    def nbytes(self) -> int:
        """The bytes of the array."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __getitem__(self, rows: slice | NDArray[Any]) -> NDArray[Any]:
        return self.source[self.rows[rows]].astype(self.dtype, copy=False)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[:], dtype=dtype)


def pieces(values: NDArray[Any] | LazyRows) -> Iterator[NDArray[Any]]:
    """Yield an array (n, ...) in slices of rows of about ``PIECE_BYTES`` bytes."""
    step = max(1, PIECE_BYTES // max(values.nbytes // max(len(values), 1), 1))
    for first in range(0, len(values), step):
        yield values[first : first + step]


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


def check_labels(where: str, y: NDArray[Any], classes: int, labels: Labels | None = None) -> None:
    """Raise InputError unless ``y`` (n,) are int64 labels 0..``classes`` - 1, or float64 ``labels`` of another task."""
    if labels is not None and labels.kind != CLASSES:
        if y.ndim != 1 or y.dtype != np.float64:
            raise InputError(f"{where} is inconsistent: labels must be a list of float64 numbers")
        labels.task().check(where, y)
        return
    if y.ndim != 1 or y.dtype != np.int64 or (len(y) and not (y.min() >= 0 and y.max() < classes)):
        raise InputError(f"{where} is inconsistent: a label is outside 0..{classes - 1}")


def check_finite(where: str, **arrays: NDArray[Any] | LazyRows) -> None:
    """Raise InputError unless the arrays have finite floating-point numbers in native byte order."""
    for name, values in arrays.items():
        is_sound = values.dtype.kind == "f" and bool(values.dtype.isnative)
        if not is_sound or not all(np.isfinite(piece).all() for piece in pieces(values)):
            raise InputError(f"{where} is inconsistent: {name} has a number that is not finite")


def check_integers(where: str, **arrays: NDArray[Any]) -> None:
    """Raise InputError unless the arrays are lists (n,) of int64 numbers."""
    for name, values in arrays.items():
        if values.ndim != 1 or values.dtype != np.int64:
            raise InputError(f"{where} is inconsistent: {name} must be a list of int64 numbers")
