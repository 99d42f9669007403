"""Atomic writes of outputs that are not artifacts, such as exports and reports.

As for artifacts, an output is written to ``OUT.partial`` under the lock ``OUT.partial.lock``, and then renamed to
``OUT``. After a kill, ``OUT`` is the old output or the new one, never a mixture. The next run of the command replaces
``OUT.partial``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pflcli.artifacts import disk, locks, placement
from pflcli.core.errors import ConflictError


def replace_file(path: Path, content: bytes) -> None:
    """Write a file, or replace the old one.

    Raises OSError if that fails, and keeps the old file; ConflictError if another process writes the file, or if the
    temporary name is a folder.
    """
    partial = placement.partial_folder(path)
    with locks.acquire(path):
        if partial.is_dir():
            raise ConflictError(f"{partial} is a folder, but pfl needs this name to write {path}", "move it away")
        try:
            disk.write(partial, [content])
            partial.replace(path)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


@contextmanager
def fill_folder(out: Path, names: set[str]) -> Iterator[Path]:
    """Yield an empty folder ``OUT.partial`` to fill with files of these ``names``; remove it if it is not moved.

    Raises ConflictError if another process writes ``out``, or if the folder has files other than ``names``.
    """
    partial = placement.partial_folder(out)
    with locks.acquire(out):
        if os.path.lexists(partial):
            known = partial.is_dir() and not partial.is_symlink() and {item.name for item in partial.iterdir()} <= names
            if not known:
                raise ConflictError(f"{partial} exists, but pfl needs this name to write {out}", "move it away")
            shutil.rmtree(partial)
        partial.mkdir()
        try:
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)
