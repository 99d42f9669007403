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

from pflcli.artifacts import disk
from pflcli.artifacts.client_blocks import LazyRows, pieces

_SMALL_ARRAY = 1 << 20
"""Bytes below which an array is read instead of mapped."""


class _Sink(io.FileIO):
    """The file object that HDF5 writes to; it seeks before each call.

    It stores the first error instead of raising it, because HDF5 would abort the process.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w+")
        self.error: OSError | None = None
        self.needed = 0
        """bytes of the file so far, including those that could not be written"""

    def write(self, content: Any) -> int:
        """Write all bytes of a buffer; after an error, write nothing."""
        view, position = memoryview(content).cast("B"), self.tell()
        size = len(view)
        self.needed = max(self.needed, position + size)
        try:
            while view and self.error is None:
                count = os.pwrite(self.fileno(), view, position)
                view, position = view[count:], position + count
        except OSError as error:
            self.error = error
        return size

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, with zeros after the end of the file."""
        view = memoryview(buffer).cast("B")
        count = super().readinto(view) or 0
        view[count:] = bytes(len(view) - count)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Truncate the file, or extend it by zeros."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return 0

    def sync(self) -> None:
        """Wait until the file is on disk."""
        try:
            os.fsync(self.fileno())
        except OSError as error:
            self.error = self.error or error


@contextmanager
def create(path: Path) -> Iterator[Any]:
    """Yield an HDF5 file that is written to ``path`` while it is filled, and synced to disk at the end.

    The same calls give the same bytes. Raises InputError at the end if a write failed.
    """
    import h5py

    failure = f"cannot write {path}"
    try:
        sink = _Sink(path)
    except OSError as error:
        raise disk.write_error(failure, path.parent, error) from None
    with sink:
        try:
            with h5py.File(sink, "w", locking=False) as file:
                yield file
            sink.sync()
        finally:
            if sink.error is not None:  # replaces HDF5's own, less precise error
                raise disk.write_error(failure, path.parent, sink.error, sink.needed)


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


def map_or_read(dataset: Any) -> NDArray[Any]:
    """Return a dataset of an HDF5 file as a read-only memory map.

    The system drops its pages when memory is short. A dataset that is small, compressed or not aligned is read instead.
    """
    first, dtype = dataset.id.get_offset(), dataset.dtype
    if first is not None and first % dtype.itemsize == 0 and dataset.nbytes >= _SMALL_ARRAY and dtype.isnative:
        with suppress(OSError, ValueError):  # a file system without memory maps
            return np.asarray(np.memmap(dataset.file.filename, dtype, "r", first, dataset.shape))
    values: NDArray[Any] = dataset[...]
    return values


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
