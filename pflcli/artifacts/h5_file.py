"""HDF5 files that need not fit into memory: written while they are filled, read through memory maps."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts.gathered import Gathered

PIECE = 1 << 23
"""Bytes of an array that are checked or moved at a time."""


class WriteError(OSError):
    """A file that could not be written, of so many bytes ``needed``."""

    def __init__(self, error: OSError, needed: int) -> None:
        super().__init__(error.errno, error.strerror)
        self.needed = needed


class _Sink(io.RawIOBase):
    """The file object that HDF5 writes to. It keeps the first error for later: HDF5 would end the process."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        self._position = self._end = 0
        self.error: OSError | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move, and return the new position."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._end}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def write(self, content: Any) -> int:
        """Write all bytes of a buffer; after an error, only pretend to."""
        view = memoryview(content).cast("B")
        try:
            written = 0
            while self.error is None and written < len(view):
                written += os.pwrite(self._file, view[written:], self._position + written)
        except OSError as error:
            self.error = error
        self._position += len(view)
        self._end = max(self._end, self._position)
        return len(view)

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, with zeros behind the end of what could be written."""
        view = memoryview(buffer).cast("B")
        content = os.pread(self._file, len(view), self._position)
        view[:] = content + bytes(len(view) - len(content))
        self._position += len(view)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Cut the file off, or extend it by zeros."""
        self._end = self._position if size is None else size
        try:
            os.ftruncate(self._file, self._end)
        except OSError as error:
            self.error = self.error or error
        return self._end

    def flush(self) -> None:
        """Do nothing: ``sync`` does it once."""

    def sync(self) -> None:
        """Wait until everything has reached the disk."""
        try:
            os.fsync(self._file)
        except OSError as error:
            self.error = self.error or error

    def failure(self) -> WriteError:
        """Return the first error, with the bytes that the file needs as far as it is known."""
        assert self.error is not None
        return WriteError(self.error, self._end)

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            os.close(self._file)
            super().close()


@contextmanager
def writing(path: Path) -> Iterator[Any]:
    """Yield an HDF5 file that is written to ``path`` while it is filled, and is synced to disk at the end.

    The same calls give the same bytes. Raises WriteError at the end if something could not be.
    """
    import h5py

    try:
        sink = _Sink(path)
    except OSError as error:
        raise WriteError(error, 0) from None
    try:
        try:
            with h5py.File(sink, "w", locking=False) as file:
                yield file
        finally:
            if sink.error is not None:  # what HDF5 has raised for want of these bytes says less
                raise sink.failure()
        sink.sync()
        if sink.error is not None:
            raise sink.failure()
    finally:
        sink.close()


def fill(file: Any, arrays: Mapping[str, NDArray[Any] | Gathered], attrs: Mapping[str, Any] | None = None) -> None:
    """Write arrays, by ``group/name``, and attributes; equal arrays in the same order give the same bytes."""
    for name, values in arrays.items():
        if isinstance(values, Gathered):
            dataset, last = reserve(file, name, values.shape, values.dtype), 0
            for piece in pieces(values):
                first, last = last, last + len(piece)
                dataset[first:last] = piece
        else:
            file.create_dataset(name, data=values, track_times=False)
    for key, value in (attrs or {}).items():
        file.attrs[key] = value


def reserve(file: Any, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a dataset (n, ...) that is yet to be filled, with its place in the file: where ``fill`` would put it."""
    dataset = file.create_dataset(name, shape=shape, dtype=dtype, track_times=False)
    if shape[0]:
        dataset[:1] = np.zeros((1, *shape[1:]), dtype)
    return dataset


def mapped(dataset: Any) -> NDArray[Any]:
    """Return a dataset of an HDF5 file as a read-only memory map, which reads rows when they are used.

    The system drops its pages when memory is short. A dataset that is small, compressed or not aligned is read instead.
    """
    first = dataset.id.get_offset()
    if first is None or first % dataset.dtype.itemsize or dataset.nbytes < _SMALL or not dataset.dtype.isnative:
        values: NDArray[Any] = dataset[...]
        return values
    with suppress(OSError, ValueError):  # a file system without memory maps
        return np.asarray(np.memmap(dataset.file.filename, dataset.dtype, "r", first, dataset.shape))
    values = dataset[...]
    return values


_SMALL = 1 << 20
"""Bytes below which an array is read at once."""


def pieces(values: NDArray[Any] | Gathered) -> Iterator[NDArray[Any]]:
    """Yield an array (n, ...) in slices of rows of about ``PIECE`` bytes."""
    step = max(1, PIECE // max(values.nbytes // max(len(values), 1), 1))
    for first in range(0, len(values), step):
        yield values[first : first + step]


def require_plain(group: Any, budget: int) -> None:
    """Raise ValueError unless an HDF5 file has the form that ``fill`` writes: groups of datasets, all in the file.

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
