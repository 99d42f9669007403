"""Rows of an array that are copied when they are read: samples in another order, without a second copy in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class LazyRows:
    """The rows ``rows`` (n,) of ``source``, converted to ``dtype``. Indexing returns arrays."""

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
