"""Runs one subject as a process of its own and watches the memory of all processes that it starts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.engine import process_settings
from subjects import processes, work

FOLDER = Path(__file__).parents[1]
_LIMIT = 900.0
"""Seconds after which a subject is given up."""


class Failed(Exception):
    """A subject ended with an error; the last line it wrote."""


@dataclass(frozen=True)
class Outcome:
    """``facts`` that the subject reported, its peak memory (bytes), and to check, its model and batch sizes."""

    facts: dict[str, Any]
    memory: int
    parameters: dict[str, NDArray[np.float32]]
    steps: list[int]


def run(python: str, module: str, task: work.Task) -> Outcome:
    """Run a subject to its end; raises Failed with the reason if it does not reach one."""
    command = [python, "-m", f"subjects.{module}"]
    if module == "apple" and task.workers > 1:
        launch = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(task.workers), "-m"]
        command = [python, "-m", *launch, f"subjects.{module}"]
    surroundings = os.environ | {
        "PYTHONPATH": f"{FOLDER}{os.pathsep}{FOLDER.parent}",
        "OMP_NUM_THREADS": str(task.threads),
        # Threads that spin while they wait cost a busy machine many times over: no subject's do.
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    if task.keeps_memory:
        surroundings["MALLOC_MMAP_MAX_"] = str(process_settings.MMAP_MAX)
        surroundings["MALLOC_ARENA_MAX"] = str(process_settings.ARENA_MAX)
        surroundings["MALLOC_TRIM_THRESHOLD_"] = str(process_settings.TRIM_THRESHOLD)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        log = out.with_suffix(".log")
        with log.open("w") as stream:
            process = subprocess.Popen(
                [*command, replace(task, out=str(out)).json],
                env=surroundings,
                cwd=folder,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
            memory = _watch(process)
        if process.returncode or not out.with_suffix(".json").exists():
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            raise Failed(lines[-1] if lines else f"exit status {process.returncode}")
        facts = json.loads(out.with_suffix(".json").read_text())
        parameters = dict(np.load(out.with_suffix(".npz"))) if task.check else {}
        counted = [json.loads(path.read_text()) for path in out.parent.glob("out.*.steps")]
        return Outcome(facts, memory, parameters, [size for sizes in counted for size in sizes])


def _watch(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process and return the largest memory seen of it and its descendants, in bytes."""
    peak, began, tree = 0, time.monotonic(), [process.pid]
    try:
        while process.poll() is None:
            tree = list(processes.descendants(process.pid))
            peak = max(peak, sum(map(processes.memory, tree)))
            if time.monotonic() - began > _LIMIT:
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
    finally:
        for pid in tree if process.poll() is None else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
    return peak
