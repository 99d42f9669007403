"""Shared memory for the tensors of several processes, so that no pipe transfers parameters and no disk stores them.

It is not part of ``processes.py``, which workers run as a script: pickles would then contain a ``Layout`` of another
module.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

_ALIGN = 64
"""Bytes to which the first byte of each tensor is aligned."""


@dataclass(frozen=True)
class Layout:
    """Where tensors are in shared memory: ``fields`` are their name, shape, dtype and first byte.

    Other processes open the memory by its ``path``.
    """

    path: str
    size: int
    fields: tuple[tuple[str, tuple[int, ...], torch.dtype, int], ...]


class Arena:
    """Shared memory for the tensors of several processes. Each ``fill`` overwrites it, and extends it if necessary."""

    def __init__(self) -> None:
        self._file, self._path = _shared_file()
        self._size = 0

    def fill(self, tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> tuple[Layout, dict[str, Tensor]]:
        """Copy ``tensors`` in, reserve space for tensors shaped ``like`` others, and return the layout and views."""
        fields, end = [], 0
        for name, value in (*tensors.items(), *like.items()):
            fields.append((name, tuple(value.shape), value.dtype, end))
            end += math.ceil(value.numel() * value.element_size() / _ALIGN) * _ALIGN
        self._size = max(self._size, end, _ALIGN)
        os.ftruncate(self._file, self._size)
        layout = Layout(self._path, self._size, tuple(fields))
        views = attach(layout)
        for name, value in tensors.items():
            views[name].copy_(value)
        return layout, views

    def close(self) -> None:
        """Release the memory. The system frees it when no tensor uses it any longer."""
        os.close(self._file)
        if not self._path.startswith("/proc/"):
            with suppress(OSError):
                Path(self._path).unlink()


def attach(layout: Layout) -> dict[str, Tensor]:
    """Return the tensors of a layout as views of the shared memory."""
    with Path(layout.path).open("r+b") as file:
        memory = mmap.mmap(file.fileno(), layout.size)
    return {
        name: torch.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=first).view(shape)
        if math.prod(shape)
        else torch.empty(shape, dtype=dtype)
        for name, shape, dtype, first in layout.fields
    }


def _shared_file() -> tuple[int, str]:
    """Return the descriptor of a file in memory, and the path by which a child process opens it.

    On systems without such files, such as macOS, create it in the folder for temporary files.
    """
    if hasattr(os, "memfd_create"):
        with suppress(OSError):  # a sandbox may forbid it
            file = os.memfd_create("pfl")
            path = f"/proc/{os.getpid()}/fd/{file}"
            if Path(path).exists():
                return file, path
            os.close(file)
    return tempfile.mkstemp(prefix="pfl-")
