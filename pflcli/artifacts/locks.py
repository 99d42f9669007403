"""Locks on outputs that work on any file system and between machines: a folder ``OUT.partial.lock`` with one entry.

The name of the entry identifies the holder of the lock: process, host, and a random part. A process acquires a lock by
renaming a folder with its own entry to the lock's name, which fails while there is another entry. It takes the lock
over from a dead holder by renaming the holder's entry to its own. Names of entries are never reused, so that only one
successor gets the lock, and a new lock is never mistaken for an old one. Each of these steps is atomic on local disks,
NFS and Lustre, where ``flock`` may work on one host only, or fail.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from pflcli.errors import ConflictError

LEASE_SECONDS = 60.0
"""Seconds without a renewal, by our own clock, after which a holder on another host counts as dead."""

RENEWAL_SECONDS = 10.0
"""Seconds between renewals: six per lease, so that a slow network does not end it."""

LONGEST_SUFFIX = len(".partial.lock.") + 8
"""Maximum number of bytes that the name of a lock, or of a prepared one, adds to the name of an output."""

_POLL_SECONDS = 0.5  # seconds between checks of another holder's entry
_MAX_TRIES = 500  # of at least 10 ms each, while a lock without a visible holder is released or taken over
_OCCUPIED_ERRORS = {errno.EEXIST, errno.ENOTEMPTY}


class Holder(NamedTuple):
    """The holder of a lock; the parts, joined by dots, are the name of its entry."""

    pid: str
    started: str
    """when the process started, in units of the system: process numbers are reused"""
    host: str
    """a hash of host name, boot and process namespace: processes with the same one can see each other"""
    token: str
    """a random part, so that names are never reused"""
    host_name: str

    @classmethod
    def create(cls) -> Holder:
        """Return this process as a holder, with a new token."""
        name, pid = host_name(), os.getpid()
        return cls(str(pid), _start_time(pid) or "", _hash_host(name), secrets.token_hex(8), name)

    @classmethod
    def parse(cls, entry: str) -> Holder | None:
        """Return the holder with this entry, or None if pfl did not write the entry."""
        parts = entry.split(".", len(cls._fields) - 1)
        return cls(*parts) if len(parts) == len(cls._fields) and re.fullmatch("[1-9][0-9]{0,8}", parts[0]) else None

    @property
    def entry(self) -> str:
        """The name of the holder's entry."""
        return ".".join(self)


class Lock:
    """An acquired lock, whose lease a thread renews. It is released at the latest when the object is deleted."""

    def __init__(self, entry: Path) -> None:
        """Keep the lock in which ``entry`` is this process's own."""
        self._entry = entry
        ended = threading.Event()
        self.release = weakref.finalize(self, _release, entry, ended, os.getpid())
        threading.Thread(target=_renew, args=(entry, ended), name="lease", daemon=True).start()

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release the lock."""
        self.release()

    def is_lost(self) -> bool:
        """Whether another process took over the lock, because this one was suspended for longer than the lease."""
        return not self._entry.exists()


def folder(out: Path) -> Path:
    """Return the path of the lock on the output ``out``."""
    return out.with_name(out.name + ".partial.lock")


def acquire(out: Path, say: Callable[[str], None] | None = None) -> Lock:
    """Lock ``out`` at once, or take its lock over from a dead holder.

    A holder on this host is dead if its process is. A holder on another host is dead if it does not renew its entry for
    ``LEASE_SECONDS`` of our clock: clocks are not compared. With ``say``, the function announces this and waits;
    otherwise it takes the holder as alive. Raises ConflictError if a living process has the lock, or if other files are
    at its path; OSError if the lock cannot be created.
    """
    lock, me = folder(out), Holder.create()
    for _ in range(_MAX_TRIES):
        holder = _read_holder(out)
        if holder is None:
            _create(lock, me)
        elif _is_dead(lock, holder, say):
            with suppress(FileNotFoundError):  # another successor was faster, or the holder has released the lock
                (lock / holder.entry).rename(lock / me.entry)
        elif (lock / holder.entry).exists():
            raise ConflictError(
                f"{out} is being written by another pfl (process {holder.pid} on {holder.host_name})",
                "wait for it to end",
            )
        if (lock / me.entry).exists():  # NFS may report an error for a rename that succeeded
            _remove_unused(lock)
            return Lock(lock / me.entry)
    raise ConflictError(f"{out} is being written by another pfl", "wait for it to end")


def _read_holder(out: Path) -> Holder | None:
    """Return the holder of the lock on ``out``, or None; raises ConflictError if other files are at its path."""
    lock = folder(out)
    try:  # NFS keeps removed files that are still open under hidden names
        entries = [item.name for item in lock.iterdir() if not item.name.startswith(".")]
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        entries = [""]
    holders = [Holder.parse(name) for name in entries]
    if None in holders:
        raise ConflictError(
            f"{lock} was not made by pfl, but pfl needs this name to write {out}", "choose another folder for --out"
        )
    return holders[0] if holders else None


def _create(lock: Path, me: Holder) -> None:
    """Create the lock with the entry of ``me``, unless another process has it."""
    prepared = lock.with_name(f"{lock.name}.{me.token[:8]}")
    prepared.mkdir()
    try:
        with suppress(FileNotFoundError):  # a process that acquires the lock removes what others have prepared
            (prepared / me.entry).touch()
            prepared.rename(lock)
    except OSError as error:
        if error.errno not in _OCCUPIED_ERRORS:
            raise
        time.sleep(0.01)  # the next try sees the holder, unless it has released the lock
    finally:
        _remove_entries(prepared)


def _is_dead(lock: Path, holder: Holder, say: Callable[[str], None] | None) -> bool:
    if holder.host == _hash_host(host_name()):
        started = _start_time(int(holder.pid))
        return started is None or ("" not in (started, holder.started) and started != holder.started)
    if say is None:
        return False
    began, renewed = time.monotonic(), _renewal_time(lock / holder.entry)
    say(
        f"waiting for {lock} of process {holder.pid} on {holder.host_name}: "
        f"if it is not renewed within {LEASE_SECONDS:.0f} seconds, it is taken over"
    )
    while time.monotonic() - began < LEASE_SECONDS:
        time.sleep(_POLL_SECONDS)
        if _renewal_time(lock / holder.entry) != renewed:
            return False
    return True


def _renewal_time(entry: Path) -> int:
    """Return the time of an entry's last renewal on its own clock, 0 if it is gone."""
    try:
        handle = os.open(entry, os.O_RDONLY)  # opening makes NFS ask the server instead of its cache
    except OSError:
        return 0
    try:
        return os.fstat(handle).st_mtime_ns
    finally:
        os.close(handle)


def _renew(entry: Path, ended: threading.Event) -> None:
    while not ended.wait(RENEWAL_SECONDS):
        with suppress(OSError):  # the network may recover, and ``is_lost`` reports a lost lock
            os.utime(entry)


def _release(entry: Path, ended: threading.Event, pid: int) -> None:
    ended.set()
    if os.getpid() == pid:  # not in a fork of the process
        with suppress(OSError):
            entry.unlink()
            entry.parent.rmdir()


def _remove_entries(unused: Path) -> None:
    """Remove a folder with entries of locks; keep anything else."""
    with suppress(OSError):
        for item in unused.iterdir():
            if Holder.parse(item.name):
                item.unlink()
        unused.rmdir()


def _remove_unused(lock: Path) -> None:
    """Remove locks that killed processes have prepared; a living process notices, and tries again."""
    name = re.compile(re.escape(lock.name) + r"\.[0-9a-f]{8}")
    for item in lock.parent.iterdir():
        if name.fullmatch(item.name):
            _remove_entries(item)


def host_name() -> str:
    """Return the name of this host."""
    return socket.gethostname().replace("/", "-")


def _hash_host(name: str) -> str:
    facts = [name]
    with suppress(OSError):  # Linux has both
        facts += [Path("/proc/sys/kernel/random/boot_id").read_text(), str(Path("/proc/self/ns/pid").readlink())]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _start_time(pid: int) -> str | None:
    """Return when a process of this host started, "" if that is unknown, None if the process has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass  # it lives, and belongs to another user
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in b"ZX" else fields[19].decode()
    command = ["ps", "-o", "state=", "-o", "lstart=", "-p", str(pid)]  # macOS has no /proc
    output = subprocess.run(command, capture_output=True, env={**os.environ, "LC_ALL": "C", "TZ": "UTC"}, check=False)
    state, _, started = output.stdout.strip().partition(b" ")
    return None if state.startswith(b"Z") else hashlib.sha256(started).hexdigest()[:16] if started else ""
