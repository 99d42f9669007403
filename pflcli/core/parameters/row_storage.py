"""The interface for storing the rows of a model table, and storage in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Storage(Protocol):
    """Stores rows of equal size; ``number`` identifies one of the tables of a run."""

    number: int

    def read(self, row: int, into: NDArray[np.uint8], size: int = 0, first: int = 0) -> None:
        """Fill ``into`` with a row, or with the bytes from ``first`` on of one of ``size`` bytes."""

    def write(self, row: int, size: int, pieces: Sequence[tuple[slice, NDArray[np.uint8]]]) -> None:
        """Replace or append a row of ``size`` bytes, given what is in its ``pieces``."""

    def hashes(self, rows: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
        """Return hashes (n, 32) of ``rows`` of ``size`` bytes; (0, 32) if checkpoints contain the rows themselves."""

    def check(self, rows: NDArray[np.int64], size: int, hashes: NDArray[np.uint8]) -> None:
        """Raise InputError unless ``rows`` have these hashes."""

    def sync(self) -> None:
        """Return after all written rows are on disk."""


class InMemoryRows:
    """Stores rows in the memory of this process."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.rows: dict[int, NDArray[np.uint8]] = {}

    def read(self, row: int, into: NDArray[np.uint8], size: int = 0, first: int = 0) -> None:
        """Fill ``into`` with a row, or with the bytes from ``first`` on of one of ``size`` bytes."""
        into[:] = self.rows[row][first : first + len(into)]

    def write(self, row: int, size: int, pieces: Sequence[tuple[slice, NDArray[np.uint8]]]) -> None:
        """Replace or append a row of ``size`` bytes, given what is in its ``pieces``."""
        # Write in place: new memory would fragment the larger blocks that a round frees and allocates again.
        content = self.rows.setdefault(row, np.empty(size, np.uint8))
        for piece, values in pieces:
            content[piece] = values

    def hashes(self, rows: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
        """Return no hashes: checkpoints contain the rows themselves."""
        return np.empty((0, 32), np.uint8)

    def check(self, rows: NDArray[np.int64], size: int, hashes: NDArray[np.uint8]) -> None:
        """Do nothing: the rows come from the checkpoint itself."""

    def sync(self) -> None:
        """Do nothing: these rows end with the process."""
