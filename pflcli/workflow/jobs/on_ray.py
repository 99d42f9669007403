"""Run jobs in parallel as tasks of Ray: each task is a whole run, which Ray restarts if its node or process is lost.

All nodes must see the same files. A restarted task resumes from the checkpoint of the lost one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from pflcli.core import sources
from pflcli.core.engine.executors import ray_runtime
from pflcli.core.errors import LostWorkerError, PflError
from pflcli.core.execution import Execution
from pflcli.core.registry.sent_files import SentFile, use_sent_files
from pflcli.core.reporter import NullReporter
from pflcli.workflow.jobs.graph import Job, Planned
from pflcli.workflow.jobs.progress import OverallProgress
from pflcli.workflow.training import hardware

MAX_RESTARTS = 10
"""How often a job is restarted if its node or process is lost."""

CANCEL_SECONDS = 30.0
"""Seconds to wait for tasks to write their checkpoints when the comparison is interrupted."""

Attempt = Callable[[Planned, Execution, OverallProgress], PflError | None]
"""A function that runs one job and returns its error, or None."""


class RayWorkers:
    """Runs jobs by ``attempt`` as tasks of Ray.

    A job uses ``execution.threads`` CPUs, by default one. At most ``execution.jobs`` jobs run in parallel, by default
    as many as fit. Leaving the context cancels the running tasks.
    """

    def __init__(self, execution: Execution, attempt: Attempt) -> None:
        cluster = hardware.ray_cluster(execution)
        assert cluster is not None
        threads = execution.threads or 1
        jobs = execution.jobs
        self._ray = ray_runtime.connect(cluster, threads * jobs if jobs else max(hardware.threads(0), threads))
        places = ray_runtime.require_room(self._ray, 1, threads, cluster.gpus_per_worker)
        resources = {"num_cpus": threads, "num_gpus": cluster.gpus_per_worker, "max_retries": MAX_RESTARTS}
        self._task = self._ray.remote(**resources)(_attempt_alone)
        self._places, self._attempt, self._reporter = jobs or places, attempt, execution.reporter
        self._own = replace(execution.locally(), threads=threads, jobs=0)
        self._files = sources.read_used_files()
        self._running: dict[Any, Job] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for reference in self._running:
            self._ray.cancel(reference)  # interrupts the task, which then writes its checkpoint
        if self._running:
            self._ray.wait(list(self._running), num_returns=len(self._running), timeout=CANCEL_SECONDS)

    def has_room(self) -> bool:
        """Whether another job can be started."""
        return len(self._running) < self._places

    def start(self, item: Planned) -> None:
        """Submit a job as a task."""
        alone = replace(self._own, reporter=Notes())
        self._running[self._task.remote(self._attempt, item, alone, str(Path.cwd()), self._files)] = item.job

    def wait(self) -> tuple[Job, PflError | None]:
        """Wait for a task, show its messages, and return its job and error. An exception of the task is raised."""
        (finished,), _ = self._ray.wait(list(self._running), num_returns=1)
        job = self._running.pop(finished)
        try:
            error, notes = self._ray.get(finished)
        except self._ray.exceptions.RayTaskError as raised:
            raise raised.cause from None
        except self._ray.exceptions.RayError:
            return job, LostWorkerError(
                f"its process on Ray was lost {MAX_RESTARTS + 1} times", "the same command resumes it"
            )
        for kind, text in notes:
            getattr(self._reporter, kind)(text)
        return job, error


def _attempt_alone(
    attempt: Attempt, item: Planned, execution: Execution, folder: str, files: list[SentFile]
) -> tuple[PflError | None, Any]:
    """Run one job, with the users' ``files``, in the folder to which its paths are relative.

    Return its error and its messages.
    """
    use_sent_files(files)
    os.chdir(folder)
    notes = execution.reporter
    assert isinstance(notes, Notes)
    progress = OverallProgress(notes, [item.job])
    with progress.overall():
        error = attempt(item, execution, progress)
    return error, notes.lines


class Notes(NullReporter):
    """A reporter that collects messages, which another process shows; it shows no progress."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def say(self, text: str) -> None:
        """Keep a line for the user."""
        self.lines.append(("say", text))

    def detail(self, text: str) -> None:
        """Keep a line for a user who typed -v."""
        self.lines.append(("detail", text))
