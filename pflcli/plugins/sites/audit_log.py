"""The audit log of a site: a row for each message that enters or leaves it, in the order in which they do.

A row is written and synced before its message leaves, so that nothing leaves without one. A process that is killed
after that sends the message again, with another row of the same SHA-256.
"""

from __future__ import annotations

import csv
import os
from contextlib import suppress
from pathlib import Path

from pflcli.artifacts import csv_file, disk
from pflcli.core import foreign
from pflcli.core.errors import InputError
from pflcli.core.wording import counted
from pflcli.plugins.sites.endpoints import Site
from pflcli.plugins.sites.log_times import read_clock
from pflcli.plugins.sites.messages import Answer, Final, Message, hash_file

FILE = "audit.csv"
COLUMNS = ("time", "direction", "run", "phase", "round", "attempt", "exchange", "bytes", "sha256", "content")
IN, REFUSED, HELD, OUT = "in", "refused", "held", "out"
"""Directions: a message that was refused entered as well, and an answer that is held has not left."""


class AuditLog:
    """The audit log in the folder of a site, to which one process writes at a time."""

    def __init__(self, folder: Path, run: str = "") -> None:
        """Write to the ``folder`` of a site about a ``run`` of several, or the only one."""
        self.folder, self.run, self._path = folder, run, folder / FILE

    def note(self, direction: str, message: Message, site: Site) -> None:
        """Add the row of a message of the run at ``site``; raises InputError if it cannot be written."""
        head = message.head
        if isinstance(head, Final):
            position = ["final", "", "", ""]
        else:
            position = [site.name_phase(head.round), str(head.round), str(head.attempt), str(head.exchange)]
        self._append([direction, self.run, *position, *_weigh(message.path), _describe(message)])

    def note_scores(self, direction: str, path: Path, runs: int) -> None:
        """Add the row of the file with the scores of all ``runs``."""
        self._append([direction, self.run, "scores", "", "", "", *_weigh(path), f"scores of {counted(runs, 'run')}"])

    def note_refusal(self, path: Path, reason: str) -> None:
        """Add the row of a message that was refused, whatever it is."""
        try:
            facts = _weigh(path)
        except OSError:
            facts = ["", ""]
        self._append([REFUSED, self.run, "", "", "", "", *facts, f"refused: {' '.join(reason.split())[:400]}"])

    def _append(self, row: list[str]) -> None:
        """Write a row at the end, after the unfinished one that a lost machine may have left."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                size = _find_end(handle)
                os.ftruncate(handle, size)
                rows = [[read_clock(), *row]]
                content = csv_file.encode(COLUMNS, rows) if not size else csv_file.encode(rows[0], [])
                try:
                    os.lseek(handle, 0, os.SEEK_END)
                    written = 0
                    while written < len(content):
                        written += os.write(handle, content[written:])
                    os.fsync(handle)
                except OSError:
                    with suppress(OSError):
                        os.ftruncate(handle, size)
                    raise
            finally:
                os.close(handle)
        except OSError as error:
            raise disk.write_error(f"cannot write {self._path}", self.folder, error) from None


def read_held(folder: Path) -> list[dict[str, str]]:
    """Return the rows, in the audit log of the site in a folder, of answers that are held: the last row of their runs.

    Raises InputError if it is not an audit log.
    """
    path, last = folder / FILE, dict[str, dict[str, str]]()
    if path.exists():
        with foreign.reading(path, "an audit log"):
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            for row in csv.DictReader(line for line in lines if line.endswith("\n")):  # the last may be unfinished
                if row.keys() != {*COLUMNS}:
                    raise InputError(f"{path} has other columns than an audit log")
                last[row["run"]] = row
    return [row for row in last.values() if row["direction"] == HELD]


def _find_end(handle: int) -> int:
    """Return where the last whole row ends."""
    size, block = os.fstat(handle).st_size, 1 << 16
    while size:
        start = max(0, size - block)
        os.lseek(handle, start, os.SEEK_SET)
        place = os.read(handle, size - start).rfind(b"\n")
        if place >= 0:
            return start + place + 1
        size = start
    return 0


def _weigh(path: Path) -> list[str]:
    """Return the size of a file in bytes, and its SHA-256."""
    return [str(path.stat().st_size), hash_file(path)]


def _describe(message: Message) -> str:
    """Return what a message contains."""
    head, tensors = message.head, dict[str, None]()
    for name, (_, shape) in message.layout.items():
        parts = name.split("/", 2)
        own = parts[2] if len(parts) > 2 and parts[0].isdigit() and parts[1].isdigit() else name
        tensors[f"{own} {'x'.join(map(str, shape)) or 'number'}"] = None
    listed = ", ".join(tensors) or "no tensor"
    if isinstance(head, Final):
        return f"the server's state: {listed}"
    whose = counted(len(head.clients), "client")
    if not isinstance(head, Answer):
        return f"to {whose}: {listed}"
    diverged = sum(client.diverged for client in head.clients)
    sent = sum(len(channel.sent) for channel in head.channels)
    others = [counted(sent, "weight"), f"training losses ({len(head.losses)})", "versions", "processor"]
    others += [f"{counted(diverged, 'client')} diverged"] if diverged else []
    return f"of {whose}: {listed}; {', '.join(others)}"
