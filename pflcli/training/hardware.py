"""Check the requested device, threads and processes, or choose them by what the machine has."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from pflcli.errors import UsageError, closest

if TYPE_CHECKING:
    from pflcli.engine.engine import Engine
    from pflcli.engine.executors.ray_runtime import RayCluster
    from pflcli.execution import Execution


def threads(count: int) -> int:
    """Return the number of threads: ``count`` or, if that is 0, one per core that this process may use."""
    if count < 0:
        raise UsageError(f"--threads {count} is negative", "--threads 2, or 0 for all cores")
    _require_at_most_max("--threads", count)
    if count:
        return count
    # macOS does not report which cores a process may use.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def jobs(count: int) -> int:
    """Return the number of worker processes; raises UsageError for one out of range."""
    if count < 0:
        raise UsageError(f"--jobs {count} is negative", "--jobs 2, or 0 for threads of one process")
    _require_at_most_max("--jobs", count)
    return count


EXECUTORS = ("local", "ray")


def ray_cluster(executor: str, address: str, gpus_per_worker: float) -> RayCluster | None:
    """Return the Ray cluster to use, or None if this process and its children do all work.

    Raises UsageError for an unknown executor, a negative number of GPUs, and options of Ray without ``ray``.
    """
    if executor not in EXECUTORS:
        raise UsageError(f"unknown executor '{executor}'", closest(executor, EXECUTORS))
    if gpus_per_worker < 0:
        raise UsageError(f"--gpus-per-worker {gpus_per_worker:g} is negative", "--gpus-per-worker 1")
    if executor == "ray":
        from pflcli.engine.executors.ray_runtime import RayCluster

        return RayCluster(address, gpus_per_worker)
    if address or gpus_per_worker:
        raise UsageError("--ray-address and --gpus-per-worker require --executor ray", "--executor ray")
    return None


def facts(engine: Engine, execution: Execution) -> dict[str, Any]:
    """Return the hardware of a run as its manifest records it."""
    return {
        "device": device(execution.device),
        "engine": engine.mode,
        "threads": engine.threads,
        "jobs": engine.jobs,
        "executor": execution.executor,
    }


_MAX_WORKERS = 1024
"""The maximum number of threads or processes; more would not be faster and could exhaust limits of the machine."""


def _require_at_most_max(option: str, count: int) -> None:
    if count > _MAX_WORKERS:
        raise UsageError(f"{option} {count} is above the maximum of {_MAX_WORKERS}", f"{option} 0")


def engine(mode: str) -> str:
    """Return ``mode`` if it is a mode of the engine; raises UsageError otherwise."""
    from pflcli.engine.engine import MODES

    if mode not in MODES:
        raise UsageError(f"unknown engine '{mode}'", closest(mode, MODES))
    return mode


def device(name: str) -> str:
    """Return a torch device, ``cpu`` or ``cuda:i``; raises UsageError if the machine does not have it."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,4})?", name):
        raise UsageError(f"unknown device '{name}'", "--device auto, cpu, cuda or cuda:1")
    if name == "cpu":
        return "cpu"
    import torch

    count = torch.cuda.device_count()
    if name == "auto":
        return "cuda:0" if count else "cpu"
    index = int(name.partition(":")[2] or 0)
    if index >= count:
        raise UsageError(f"--device {name}: this machine has {count} CUDA devices", "--device cpu")
    return f"cuda:{index}"
