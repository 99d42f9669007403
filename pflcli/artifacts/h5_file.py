"""HDF5 files that may be larger than memory: written while they are filled, read through memory maps."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts.lazy_rows import LazyRows

PIECE = 1 << 23
"""Bytes of an array that are checked or copied at a time."""


class WriteError(OSError):
    """Raised when a file cannot be written; ``needed`` is its size in bytes."""

    def __init__(self, error: OSError, needed: int) -> None:
        super().__init__(error.errno, error.strerror)
        self.needed = needed


class _Sink(io.RawIOBase):
    """The file object that HDF5 writes to. It stores the first error: HDF5 would abort the process on an exception."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        self._position = self._end = 0
        self.error: OSError | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position, and return it."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._end}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def write(self, content: Any) -> int:
        """Write all bytes of a buffer; after an error, only advance the position."""
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
        """Fill a buffer, with zeros after the end of the file."""
        view = memoryview(buffer).cast("B")
        content = os.pread(self._file, len(view), self._position)
        view[:] = content + bytes(len(view) - len(content))
        self._position += len(view)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Truncate the file, or extend it by zeros."""
        self._end = self._position if size is None else size
        try:
            os.ftruncate(self._file, self._end)
        except OSError as error:
            self.error = self.error or error
        return self._end

    def flush(self) -> None:
        """Do nothing: ``sync`` is called once at the end."""

    def sync(self) -> None:
        """Wait until the file is on disk."""
        try:
            os.fsync(self._file)
        except OSError as error:
            self.error = self.error or error

    def failure(self) -> WriteError:
        """Return the first error, with the known size of the file."""
        assert self.error is not None
        return WriteError(self.error, self._end)

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            os.close(self._file)
            super().close()


@contextmanager
def writing(path: Path) -> Iterator[Any]:
    """Yield an HDF5 file that is written to ``path`` while it is filled, and synced to disk at the end.

    The same calls give the same bytes. Raises WriteError at the end if a write failed.
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
            if sink.error is not None:  # replaces HDF5's own, less precise error
                raise sink.failure()
        sink.sync()
        if sink.error is not None:
            raise sink.failure()
    finally:
        sink.close()


def fill(file: Any, arrays: Mapping[str, NDArray[Any] | LazyRows], attrs: Mapping[str, Any] | None = None) -> None:
    """Write arrays, by ``group/name``, and attributes; equal arrays in the same order give the same bytes."""
    for name, values in arrays.items():
        if isinstance(values, LazyRows):
            dataset, last = reserve(file, name, values.shape, values.dtype), 0
            for piece in pieces(values):
                first, last = last, last + len(piece)
                dataset[first:last] = piece
        else:
            file.create_dataset(name, data=values, track_times=False)
    for key, value in (attrs or {}).items():
        file.attrs[key] = value


def reserve(file: Any, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return an empty dataset (n, ...), allocated at the same place in the file as by ``fill``."""
    dataset = file.create_dataset(name, shape=shape, dtype=dtype, track_times=False)
    if shape[0]:
        dataset[:1] = np.zeros((1, *shape[1:]), dtype)
    return dataset


def mapped(dataset: Any) -> NDArray[Any]:
    """Return a dataset of an HDF5 file as a read-only memory map.

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


def pieces(values: NDArray[Any] | LazyRows) -> Iterator[NDArray[Any]]:
    """Yield an array (n, ...) in slices of rows of about ``PIECE`` bytes."""
    step = max(1, PIECE // max(values.nbytes // max(len(values), 1), 1))
    for first in range(0, len(values), step):
        yield values[first : first + step]


def require_plain(group: Any, budget: int) -> None:
    """Raise ValueError unless an HDF5 file has the layout that ``fill`` writes: groups of datasets in the same file.

    ``budget`` is the file's size in bytes, the maximum of the declared sizes together. Soft and external links, data in
    other files, and virtual datasets are not allowed.
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
                    raise ValueError(f"'{name}' is a group inside a group")  # groups could form a cycle
                groups.append(item)
                continue
            if not isinstance(item, h5py.Dataset) or item.external or item.is_virtual:
                raise ValueError(f"the data of '{name}' are not in this file")
            declared += item.nbytes
    if declared > budget:
        raise ValueError(f"its datasets declare {declared} bytes, but the file has {budget}")
