"""A file of rows of equal size, one per client, in which an unfinished run stores personal models.

A checkpoint has a hash of every row that it needs, and a run that resumes from it checks these rows. Hashes are
computed for checkpoints, and again only after a row was written.

Reads and writes use the system's page cache, which shrinks when memory is short; a memory map of the file would count
as memory of this process.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pflcli.core.errors import InputError


class RowFile:
    """One file of rows; with ``empty`` its old rows are removed. Raises InputError if it cannot be written."""

    def __init__(self, path: Path, number: int, *, empty: bool) -> None:
        self.number = number
        self._path = path
        self._hashes: dict[int, bytes] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | (os.O_TRUNC if empty else 0), 0o666)
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}") from None

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def read(self, row: int, into: NDArray[np.uint8], size: int = 0, first: int = 0) -> None:
        """Fill ``into`` with a row, or with the bytes from ``first`` on of a row of ``size`` bytes."""
        view, position = into.data, row * (size or len(into)) + first
        while view:
            count = os.preadv(self._file, [view], position)
            if count == 0:
                raise InputError(f"{self._path} ends before row {row}", self._remedy)
            view, position = view[count:], position + count

    def write(self, row: int, size: int, pieces: Sequence[tuple[slice, NDArray[np.uint8]]]) -> None:
        """Replace or append a row of ``size`` bytes, given what is in its ``pieces``."""
        content = np.empty(size, np.uint8)
        for piece, values in pieces:
            content[piece] = values
        view, position = content.data, row * size
        self._hashes.pop(row, None)
        try:
            while view:
                count = os.pwrite(self._file, view, position)
                view, position = view[count:], position + count
        except OSError as error:
            raise InputError(f"cannot write {self._path}: {error.strerror}") from None

    def hashes(self, rows: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
        """Return the SHA-256 (n, 32) of each of ``rows``, which have ``size`` bytes."""
        buffer = np.empty(size, np.uint8)
        for row in map(int, rows):
            if row not in self._hashes:
                self.read(row, buffer)
                self._hashes[row] = hashlib.sha256(buffer.data).digest()
        return np.frombuffer(b"".join(self._hashes[int(row)] for row in rows), np.uint8).reshape(-1, 32)

    def check(self, rows: NDArray[np.int64], size: int, hashes: NDArray[np.uint8]) -> None:
        """Raise InputError unless ``rows`` have these hashes (n, 32)."""
        for row, is_same in zip(rows, (self.hashes(rows, size) == hashes).all(axis=1), strict=True):
            if not is_same:
                raise InputError(f"{self._path} is damaged: row {row} differs from what was written", self._remedy)

    @property
    def _remedy(self) -> str:
        return f"remove it (rm -r {self._path.parent.parent}), and start again"

    def sync(self) -> None:
        """Wait until all written rows are on disk."""
        os.fsync(self._file)
