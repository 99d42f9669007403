"""The memory that this machine has left, for a comparison with what a run needs."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_memory() -> int:
    """Return the bytes of memory that this process may still use: those of the machine, or fewer of its container."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, StopIteration, ValueError):
        lines = _MEMINFO.read_text().splitlines()
        free = 1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])
    return min([free, *_container_limits()])


def _container_limits() -> list[int]:
    """Return what the control group of this process has left, if it has a limit (versions 2 and 1)."""
    limits = []
    names = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
    for most, used in names:
        with suppress(OSError, ValueError):
            limits.append(int((_CGROUP / most).read_text()) - int((_CGROUP / used).read_text()))
    return [limit for limit in limits if limit > 0]


def peak_memory() -> int:
    """Return the most bytes of memory that this process has had."""
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
