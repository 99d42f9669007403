"""How and where a command runs. The docstrings of the fields of ``Execution`` are the help of the options."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

from pflcli.core.errors import UsageError, closest
from pflcli.core.reporter import SILENT, Reporter

ENGINES = ("auto", "loop", "stacked")
EXECUTORS = ("local", "ray")

_MAX_WORKERS = 1024
"""The maximum number of threads or processes; more would not be faster and could exhaust limits of the machine."""


@dataclass(frozen=True)
class Execution:
    """How a command makes its artifact, and the hardware that it uses; none of this changes the result.

    Raises UsageError for hardware that no machine has, in a dry run too. Whether this machine has the device is checked
    when it is used: a plan may be for other machines.
    """

    device: str = "auto"
    """compute on this device: cpu, cuda, cuda:1, or auto (a GPU if there is one)"""
    threads: int = 0
    """use this many threads; 0 uses one per core"""
    engine: str = "auto"
    """train clients one by one (loop), many as one batched program (stacked), or choose (auto)"""
    jobs: int = 0
    """train clients in this many worker processes; 0 trains them in threads"""
    executor: str = "local"
    r"""train clients on this machine (local), or on --jobs workers of Ray (ray; --jobs 0 uses as many as fit;
    pip install 'pflcli\[ray]')"""
    ray_address: str = ""
    """join this Ray cluster, such as 10.0.0.1:6379, or auto"""
    gpus_per_worker: float = 0.0
    """give each worker of Ray this many GPUs, or a fraction of one"""
    force: bool = False
    """replace an artifact at --out that was made with other options or inputs"""
    dry_run: bool = False
    """print what would be done and why, but do not do it"""
    reporter: Reporter = SILENT
    """receives messages and progress"""
    reads: tuple[Path, ...] = ()
    """files and folders that the command reads besides its input artifacts"""
    command: tuple[str, ...] = ()
    """the words of the command line, which the artifact records"""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"auto|cpu|cuda(:\d{1,2})?", self.device):
            raise UsageError(f"unknown device '{self.device}'", "--device auto, cpu, cuda or cuda:1")
        for option, word, known in (("engine", self.engine, ENGINES), ("executor", self.executor, EXECUTORS)):
            if word not in known:
                raise UsageError(f"unknown {option} '{word}'", closest(word, known))
        for option, count, fix in (
            ("--threads", self.threads, "2, or 0 for all cores"),
            ("--jobs", self.jobs, "2, or 0 for threads of one process"),
        ):
            if count < 0:
                raise UsageError(f"{option} {count} is negative", f"{option} {fix}")
            if count > _MAX_WORKERS:
                raise UsageError(f"{option} {count} is above the maximum of {_MAX_WORKERS}", f"{option} 0")
        if self.gpus_per_worker < 0:
            raise UsageError(f"--gpus-per-worker {self.gpus_per_worker:g} is negative", "--gpus-per-worker 1")
        if not math.isfinite(self.gpus_per_worker):
            raise UsageError(
                f"--gpus-per-worker {self.gpus_per_worker:g} is not a number of GPUs", "--gpus-per-worker 1"
            )
        if self.executor != "ray" and (self.ray_address or self.gpus_per_worker):
            raise UsageError("--ray-address and --gpus-per-worker require --executor ray", "--executor ray")

    @property
    def has_workers(self) -> bool:
        """Whether worker processes take part in the computation."""
        return bool(self.jobs) or self.executor != "local"

    def locally(self) -> Execution:
        """Return this execution without Ray."""
        return replace(self, executor="local", ray_address="", gpus_per_worker=0.0)

    def reading(self, *paths: Path | str | None) -> Execution:
        """Return this execution with further ``reads``."""
        return replace(self, reads=(*self.reads, *(Path(path) for path in paths if path is not None)))
