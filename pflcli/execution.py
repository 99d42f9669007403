"""The hardware on which a command runs: device, engine, threads, processes, Ray. It does not change results."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pflcli.artifacts.make import Making


@dataclass(frozen=True)
class Execution(Making):
    """How a command makes its artifact, and where the run computes."""

    device: str = "auto"
    engine: str = "auto"
    threads: int = 0
    jobs: int = 0
    executor: str = "local"
    ray_address: str = ""
    gpus_per_worker: float = 0.0

    @property
    def has_workers(self) -> bool:
        """Whether worker processes take part in the computation."""
        return bool(self.jobs) or self.executor != "local"

    def locally(self) -> Execution:
        """Return this execution without Ray."""
        return replace(self, executor="local", ray_address="", gpus_per_worker=0.0)
