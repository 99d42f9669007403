"""The device, threads and processes that a run uses: those asked for, or chosen by what the machine has."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pflcli.core.errors import UsageError

if TYPE_CHECKING:
    from pflcli.core.engine.engine import Engine
    from pflcli.core.engine.executors.ray_runtime import RayCluster
    from pflcli.core.execution import Execution


def threads(count: int) -> int:
    """Return the number of threads: ``count`` or, if that is 0, one per core that this process may use."""
    if count:
        return count
    # macOS does not report which cores a process may use.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ray_cluster(execution: Execution) -> RayCluster | None:
    """Return the Ray cluster to use, or None if this process and its children do all work."""
    if execution.executor != "ray":
        return None
    from pflcli.core.engine.executors.ray_runtime import RayCluster

    return RayCluster(execution.ray_address, execution.gpus_per_worker)


def facts(engine: Engine, execution: Execution) -> dict[str, Any]:
    """Return the hardware of a run as its manifest records it."""
    return {
        "device": device(execution.device),
        "engine": engine.mode,
        "threads": engine.threads,
        "jobs": engine.jobs,
        "executor": execution.executor,
    }


def device(name: str) -> str:
    """Return a torch device, ``cpu`` or ``cuda:i``; raises UsageError if the machine does not have it."""
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
