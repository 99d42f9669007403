"""Free bytes of a disk, and errors for a disk that is full."""

from __future__ import annotations

import errno
import shutil
from contextlib import suppress
from pathlib import Path

from pflcli.errors import InputError
from pflcli.foreign import size


def free_bytes(folder: Path) -> int:
    """Return the bytes that may still be written to ``folder``, or to the nearest folder above it that exists."""
    return shutil.disk_usage(next(above for above in (folder, *folder.absolute().parents) if above.is_dir())).free


def require_disk(out: Path, needed: int) -> str:
    """Return a warning, maybe empty, for an artifact at ``out`` of about ``needed`` bytes.

    Raises InputError if less than half of them are free; the estimate may be wrong by a factor of two.
    """
    free = free_bytes(out.parent)
    if 2 * free < needed:
        raise InputError(
            f"{out} needs about {size(needed)} on the disk, and {size(free)} are free",
            "make room, or choose another --out",
        )
    return f"WARNING: {out} needs about {size(needed)}, and {size(free)} are free" if free < 1.1 * needed else ""


def write_error(failure: str, folder: Path, error: OSError, needed: int | None = None) -> InputError:
    """Return the error for a failed write; on a full disk it names the needed and the free bytes."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if not full:
        return InputError(f"{failure}: {error.strerror}")
    with suppress(OSError):
        room = f"{size(free_bytes(folder))} are free"
        room = f"{size(needed)} are needed, {room}" if needed is not None else room
        return InputError(
            f"{failure}: {error.strerror}; {room}", "make room and repeat the request, or choose another --out"
        )
    return InputError(f"{failure}: {error.strerror}")
