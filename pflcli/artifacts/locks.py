"""Locks on outputs, between processes and between machines: leases at ``OUT.partial.lock``, by ``filelock``.

A lease is a file that names its holder, who renews it. It works on any file system, also where ``flock`` works on one
host only, or fails.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from filelock import OwnerRecord, SoftFileLease, Timeout

from pflcli.core.errors import ConflictError

LEASE_SECONDS = 60.0
"""Seconds without a renewal, by our own clock, after which a holder counts as dead."""

RENEWAL_SECONDS = 1.0
"""Seconds between renewals: another process that sees one knows that the holder is alive."""

LONGEST_SUFFIX = len(".partial.lock.restore..") + 7 + 32
"""Maximum number of bytes that ``filelock`` adds to the name of an output, with a process id and a random number."""


class Lock:
    """An acquired lock, which is released at the latest when the object is deleted."""

    def __init__(self, lease: SoftFileLease) -> None:
        """Keep the acquired ``lease``."""
        self._lease = lease

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release the lock."""
        self.release()

    def release(self) -> None:
        """Release the lock, unless another process has taken it over."""
        self._lease.release()

    def is_lost(self) -> bool:
        """Whether another process took over the lock, or may have: it was not renewed for longer than the lease."""
        owner = self._lease.owner
        return owner is None or owner.token != self._lease.token or self._lease.compromise is not None


def file(out: Path) -> Path:
    """Return the path of the lock on the output ``out``."""
    return out.with_name(out.name + ".partial.lock")


def acquire(out: Path, say: Callable[[str], None] | None = None) -> Lock:
    """Lock ``out``, or take its lock over from a dead holder.

    A holder is dead if its process on this host has ended, or if it does not renew its lock for ``LEASE_SECONDS`` of
    our clock: clocks are not compared. With ``say``, the function waits for a renewal and announces a long wait;
    otherwise it takes the holder as alive. Raises ConflictError if a living process has the lock, or if another file is
    at its path; OSError if the lock cannot be created.
    """
    path = file(out)
    lease = SoftFileLease(
        path,
        lease_duration=LEASE_SECONDS,
        heartbeat_interval=RENEWAL_SECONDS,
        thread_local=False,
        poll_interval=RENEWAL_SECONDS / 20,
    )
    first, owner = _last_renewal(path), None

    def is_renewed() -> bool:
        return _last_renewal(path) not in ((0, 0), first)

    # ``filelock`` takes over by exchanging two names, which some file systems cannot, such as NFS; there the last
    # attempt follows the removal of a dead holder's lock.
    for seconds in (0.0,) if say is None else (1.5 * RENEWAL_SECONDS, LEASE_SECONDS, RENEWAL_SECONDS):
        with suppress(Timeout, IsADirectoryError):
            lease.acquire(timeout=seconds, cancel_check=is_renewed)
            return Lock(lease)
        owner = lease.owner
        if owner is None and os.path.lexists(path):
            raise ConflictError(
                f"{path} does not name a process, but pfl needs this name to write {out}",
                f"if no other pfl writes {out}, remove {path}; or choose another --out",
            )
        if owner is None or say is None or is_renewed():
            break
        if seconds == LEASE_SECONDS:
            lease.break_lock()
        else:
            say(
                f"waiting for {path} of {_describe(owner)}: "
                f"if it is not renewed within {LEASE_SECONDS:.0f} seconds, it is taken over"
            )
    holder = f" ({_describe(owner)})" if owner else ""
    raise ConflictError(
        f"{out} is being written by another pfl{holder}", f"wait for it to end; if it was killed, remove {path}"
    )


def _describe(owner: OwnerRecord) -> str:
    return f"process {owner.pid} on {owner.hostname.partition('?')[0]}"  # a mark of the process namespace follows


def _last_renewal(path: Path) -> tuple[int, int]:
    """Return the inode and the time of the last renewal of a lock, on the clock of its holder; zeros without one."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening makes NFS ask the server instead of its cache
    except OSError:
        return 0, 0
    try:
        state = os.fstat(handle)
        return state.st_ino, state.st_mtime_ns
    finally:
        os.close(handle)
