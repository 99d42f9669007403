"""Synced writes, checks for free disk space, and errors for a full disk."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pflcli.core.errors import InputError
from pflcli.core.foreign import size


def write(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Write a file in pieces, and wait until it is on disk."""
    with path.open("wb") as file:
        file.writelines(chunks)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def free_bytes(folder: Path) -> int:
    """Return the free bytes in ``folder``, or in its nearest parent that exists."""
    return shutil.disk_usage(next(above for above in (folder, *folder.absolute().parents) if above.is_dir())).free


def require_disk(out: Path, needed: int) -> str:
    """Return a warning if there may be no room for an artifact of about ``needed`` bytes at ``out``; else empty text.

    Raises InputError if less than half of them are free: the estimate may be wrong by a factor of two.
    """
    free = free_bytes(out.parent)
    if 2 * free < needed:
        raise InputError(
            f"{out} needs about {size(needed)} of disk space, but {size(free)} are free",
            "free disk space, or choose another --out",
        )
    return f"WARNING: {out} needs about {size(needed)}, but {size(free)} are free" if free < 1.1 * needed else ""


def write_error(failure: str, folder: Path, error: OSError, needed: int | None = None) -> InputError:
    """Return the error for a failed write; for a full disk with the needed and the free bytes."""
    if error.errno == errno.EFBIG:  # the disk may be empty: the process or the file system limits single files
        least = f"; a file of {size(needed)} is needed" if needed is not None else ""
        return InputError(f"{failure}: {error.strerror}{least}", "ulimit -f unlimited, or choose another --out")
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    if not full:
        return InputError(f"{failure}: {error.strerror}")
    with suppress(OSError):
        room = f"{size(free_bytes(folder))} are free"
        room = f"{size(needed)} are needed, {room}" if needed is not None else room
        return InputError(
            f"{failure}: {error.strerror}; {room}", "free disk space and repeat the request, or choose another --out"
        )
    return InputError(f"{failure}: {error.strerror}")
