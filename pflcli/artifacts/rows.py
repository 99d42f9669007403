"""Rows of equal size in a file that grows with them: what a run keeps of every client while it goes on.

Positioned reads and writes go through the system's page cache, which gives way when memory is short; a mapping of the
file would count as this process's own.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pflcli.errors import InputError


class Rows:
    """One file of rows; ``fresh`` empties it. Raises InputError if the disk refuses."""

    def __init__(self, path: Path, number: int, *, fresh: bool) -> None:
        self.number = number
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | (os.O_TRUNC if fresh else 0), 0o666)
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}") from None

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def read(self, row: int, into: NDArray[np.uint8]) -> None:
        """Fill ``into`` with a row."""
        view, at = into.data, row * len(into)
        while view:
            got = os.preadv(self._file, [view], at)
            if got == 0:
                begun = self._path.parent.parent
                raise InputError(f"{self._path} ends before row {row}", f"rm -r {begun}, and begin anew")
            view, at = view[got:], at + got

    def write(self, row: int, content: NDArray[np.uint8]) -> None:
        """Replace or append a row."""
        view, at = content.data, row * len(content)
        try:
            while view:
                put = os.pwrite(self._file, view, at)
                view, at = view[put:], at + put
        except OSError as error:
            raise InputError(f"cannot write {self._path}: {error.strerror}") from None

    def sync(self) -> None:
        """Return when all that was written will survive a crash."""
        os.fsync(self._file)
