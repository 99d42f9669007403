"""A process and those that it started, read from /proc: their memory and the processor time they took."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def descendants(root: int) -> dict[int, float]:
    """Return the ids of ``root`` and all processes below it, with the processor seconds that each has taken."""
    children: dict[int, list[int]] = {}
    seconds: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name, in parentheses, may hold spaces. After it: state, parent, ..., user and system time (11, 12).
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            children.setdefault(int(fields[1]), []).append(pid)
            seconds[pid] = (int(fields[11]) + int(fields[12])) / _TICK
    pids = [root]
    for pid in pids:
        pids += children.get(pid, [])
    return {pid: seconds.get(pid, 0.0) for pid in pids}


def memory(pid: int) -> int:
    """Return the proportional set size of a process in bytes: pages that several share count once in their sum."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
