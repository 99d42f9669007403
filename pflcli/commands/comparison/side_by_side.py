"""Run the steps of a comparison side by side, as tasks of Ray: each is a whole run, and starts again alone if lost.

All nodes must see the same files. A task that starts again finds the checkpoint of the one that was lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pflcli.commands.comparison.progress import OverallProgress
from pflcli.commands.comparison.steps import Step
from pflcli.engine.executors import ray_runtime
from pflcli.errors import LostWorkerError, PflError
from pflcli.execution import Execution
from pflcli.reporter import Advance
from pflcli.training import hardware

_STARTS = 10
"""How often a step is started again whose node or process was lost."""

_PATIENCE = 30.0
"""Seconds that tasks may take to write their checkpoints when the comparison is interrupted."""

Attempt = Callable[[Step, Execution, OverallProgress], PflError | None]
"""Runs one step and returns its error, or None."""


def run(
    steps: Sequence[Step],
    execution: Execution,
    attempt: Attempt,
    is_excluded: Callable[[Step], bool],
    conclude: Callable[[Step, PflError | None], None],
) -> None:
    """Run each step by ``attempt`` as soon as those that it needs are over, unless it ``is_excluded`` then.

    ``conclude`` is called with the result of each. A step computes with ``threads`` CPUs, by default one; with ``jobs``
    that many steps run at a time. Raises what ``attempt`` raises.
    """
    cluster = hardware.ray_cluster(execution.executor, execution.ray_address, execution.gpus_per_worker)
    assert cluster is not None
    threads = execution.threads or 1
    jobs = hardware.jobs(execution.jobs)
    ray = ray_runtime.connect(cluster, threads * jobs if jobs else max(hardware.threads(0), threads))
    places = ray_runtime.require_room(ray, 1, threads, cluster.gpus_per_worker)
    task = ray.remote(num_cpus=threads, num_gpus=cluster.gpus_per_worker, max_retries=_STARTS)(_attempt_alone)
    own = replace(execution.locally(), threads=threads, jobs=0)
    waiting, running = list(steps), dict[Any, Step]()
    try:
        while waiting or running:
            for step in list(waiting):
                unfinished = {(other.seed, other.name) for other in (*waiting, *running.values())}
                if len(running) >= (jobs or places) or any((step.seed, name) in unfinished for name in step.sources):
                    continue
                waiting.remove(step)
                if not is_excluded(step):
                    alone = replace(own, force=step.conflict is not None, reporter=Notes())
                    running[task.remote(attempt, step, alone, str(Path.cwd()))] = step
            if running:
                (finished,), _ = ray.wait(list(running), num_returns=1)
                step = running.pop(finished)
                conclude(step, _result(ray, finished, step, execution))
    except KeyboardInterrupt:
        for reference in running:
            ray.cancel(reference)  # an interruption there, too
        ray.wait(list(running), num_returns=len(running), timeout=_PATIENCE)
        raise


def _result(ray: Any, finished: Any, step: Step, execution: Execution) -> PflError | None:
    """Show what a task said, and return its error; raises what it raised."""
    try:
        error, notes = ray.get(finished)
    except ray.exceptions.RayTaskError as raised:
        raise raised.cause from None
    except ray.exceptions.RayError:
        return LostWorkerError(f"its process on Ray was lost {_STARTS + 1} times", "the same command resumes it")
    for kind, text in notes:
        getattr(execution.reporter, kind)(text)
    failed: PflError | None = error
    return failed


def _attempt_alone(attempt: Attempt, step: Step, execution: Execution, folder: str) -> tuple[PflError | None, Any]:
    """Run one step, in the folder to which its paths are relative; return its error, and what it said."""
    os.chdir(folder)
    notes = execution.reporter
    assert isinstance(notes, Notes)
    progress = OverallProgress(notes, [step])
    with progress.overall():
        error = attempt(step, replace(execution, reporter=progress), progress)
    return error, notes.lines


class Notes:
    """A reporter that keeps messages, for another process to show."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def say(self, text: str) -> None:
        """Keep a line for the user."""
        self.lines.append(("say", text))

    def detail(self, text: str) -> None:
        """Keep a line for a user who typed -v."""
        self.lines.append(("detail", text))

    @contextmanager
    def progress(self, label: str, total: int, completed: int = 0) -> Iterator[Advance]:
        """Yield a function that does nothing."""
        yield lambda steps, note: None
