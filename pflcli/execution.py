"""How and where a command runs. The docstrings of the fields of ``Execution`` are the help of the options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from pflcli.reporter import SILENT, Reporter


@dataclass(frozen=True)
class Execution:
    """How a command makes its artifact, and the hardware that it uses; none of this changes the result."""

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
