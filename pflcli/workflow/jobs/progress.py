"""Overall progress of several jobs, weighted by their estimated time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pflcli.core.reporter import Advance, Reporter
from pflcli.workflow.jobs.graph import Job

ROUNDS_SHARE = 0.9
"""Assumed share of the rounds in a method's time; predicting for the clients takes the rest."""
MIN_MEASURED_SHARE = 0.02
"""Finished share of a job below which its time is not extrapolated from its own pace."""


class OverallProgress:
    """A reporter for several jobs: it adds the job's name to each message, and merges their progress into one bar.

    ``measured`` contains jobs that are already finished, with their seconds.
    """

    def __init__(
        self,
        reporter: Reporter,
        jobs: Sequence[Job],
        measured: Sequence[tuple[Job, float]] = (),
        clock: Callable[[], float] = time.monotonic,
        label: str = "compare",
    ) -> None:
        self._reporter, self._clock, self._label = reporter, clock, label
        self._pending = list(jobs)
        self._job: Job | None = None
        self._measured = [*measured]
        self._start = self._job_start = clock()
        self._phases = [(0.0, 1.0)]
        self._share = self._resumed = self._percent = 0.0
        self._advance: Advance = lambda steps, note: None

    def say(self, text: str) -> None:
        """Show a line, with the job's name."""
        self._reporter.say(self._with_job(text))

    def detail(self, text: str) -> None:
        """Show a line, with the job's name, to a user who typed -v."""
        self._reporter.detail(self._with_job(text))

    def _with_job(self, text: str) -> str:
        return text if self._job is None else f"{self._job.label}: {text.removeprefix(f'{self._job.name}: ')}"

    @contextmanager
    def overall(self) -> Iterator[None]:
        """Show the overall progress, in per cent of the estimated time."""
        with self._reporter.progress(self._label, 100 if self._pending else 0) as self._advance:
            yield

    @contextmanager
    def job(self, job: Job) -> Iterator[None]:
        """Measure one job; its seconds improve the estimates for the others."""
        self.skip(job)
        self._job, self._job_start = job, self._clock()
        self._share = self._resumed = 0.0
        self._phases = [(0.0, ROUNDS_SHARE), (ROUNDS_SHARE, 1.0)] if job.has_rounds else [(0.0, 1.0)]
        try:
            yield
            seconds = self._clock() - self._job_start
            self._measured.append((job, seconds))
            self.say(f"finished in {seconds:.1f} s")
            self._share = 1.0
            self._show(job.label)
        finally:
            self._job = None

    def skip(self, job: Job) -> None:
        """Remove a job that will not run from the estimate."""
        self._pending.remove(job)

    @contextmanager
    def progress(self, label: str, total: int, completed: int = 0) -> Iterator[Advance]:
        """Count the progress within the current job as a part of the overall progress."""
        first, last = self._phases.pop(0)
        self._phases = self._phases or [(last, last)]
        position: float = completed
        name = label if self._job is None else self._job.label

        def share() -> float:
            return first + (last - first) * position / max(total, 1)

        def advance(steps: float, note: str) -> None:
            nonlocal position
            position += steps
            self._share = share()
            self._show(f"{name}, {position:.0f}/{total}{', ' + note if note else ''}")

        if self._share == 0.0:
            # Rounds of before the job was resumed took no time in this run.
            self._share = self._resumed = share()
        self._show(name)
        yield advance

    def _guess(self, job: Job, running: tuple[float, float] | None = None) -> float:
        """Return the estimated seconds of a job, from the same job with another seed or the pace of others.

        If no job has been measured yet, ``running`` is used: the work of the current job and its estimated seconds.
        Without either, an epoch is assumed to take one second.
        """
        measured = [(other.work, seconds, other.name) for other, seconds in self._measured]
        pairs = [pair[:2] for pair in measured if pair[2] == job.name] or [pair[:2] for pair in measured]
        epochs, seconds = map(sum, zip(*(pairs or [running or (0.0, 0.0)]), strict=True))
        return job.work * (seconds / epochs if epochs else 1.0)

    def _show(self, note: str) -> None:
        elapsed, job_seconds = self._clock() - self._start, self._clock() - self._job_start
        gained, remaining, running = self._share - self._resumed, 0.0, None
        if self._job is not None:
            total = job_seconds / gained if gained > MIN_MEASURED_SHARE else self._guess(self._job)
            remaining = (1 - self._share) * total
            running = (self._job.work, total)
        remaining += sum(self._guess(job, running) for job in self._pending)
        percent = max(self._percent, 100 * elapsed / max(elapsed + remaining, 1e-9))
        self._advance(percent - self._percent, note)
        self._percent = percent
