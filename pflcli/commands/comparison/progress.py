"""Overall progress of many steps, weighted by the time that each step takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pflcli.commands.comparison.steps import Step
from pflcli.reporter import Advance, Reporter

_ROUNDS = 0.9
"""Assumed share of the rounds in a method's time; the rest is spent on its clients' predictions."""
_EARLY = 0.02
"""Share of a step below which its own pace is no estimate of its time."""


class TimeEstimate:
    """Estimates the seconds of a step: as measured under another seed, else from the seconds per epoch of others."""

    def __init__(self) -> None:
        self._measured: dict[str, list[tuple[float, float]]] = {}

    def add(self, step: Step, seconds: float) -> None:
        """Add the measured ``seconds`` of one step."""
        self._measured.setdefault(step.name, []).append((step.epochs, seconds))

    def guess(self, step: Step, running: tuple[float, float] | None = None) -> float:
        """Return the estimated seconds of a step.

        While no step has been measured, ``running`` serves instead: the epochs of the current step and its estimated
        seconds. Without either, an epoch counts as one second.
        """
        all_measured = [pair for pairs in self._measured.values() for pair in pairs]
        measured = self._measured.get(step.name) or all_measured or ([running] if running else [])
        epochs = sum(epochs for epochs, _ in measured)
        return step.epochs * (sum(seconds for _, seconds in measured) / epochs if epochs else 1.0)


class OverallProgress:
    """A reporter for many steps: it adds the step's name to each message, and merges their progress into one.

    ``measured`` holds steps of earlier runs, with the seconds of each.
    """

    def __init__(
        self,
        reporter: Reporter,
        steps: Sequence[Step],
        measured: Sequence[tuple[Step, float]] = (),
        clock: Callable[[], float] = time.monotonic,
        label: str = "compare",
    ) -> None:
        self._reporter, self._clock, self._label = reporter, clock, label
        self._pending = list(steps)
        self._step: Step | None = None
        self._pace = TimeEstimate()
        for step, seconds in measured:
            self._pace.add(step, seconds)
        self._start = self._step_start = clock()
        self._phases = [(0.0, 1.0)]
        self._share = self._resumed = self._percent = 0.0
        self._advance: Advance = lambda steps, note: None

    def say(self, text: str) -> None:
        """Show a line, with the step's name."""
        self._reporter.say(self._with_step(text))

    def detail(self, text: str) -> None:
        """Show a line, with the step's name, to a user who typed -v."""
        self._reporter.detail(self._with_step(text))

    def _with_step(self, text: str) -> str:
        return text if self._step is None else f"{self._step.label}: {text.removeprefix(f'{self._step.name}: ')}"

    @contextmanager
    def overall(self) -> Iterator[None]:
        """Show the overall progress, in per cent of the estimated time."""
        with self._reporter.progress(self._label, 100 if self._pending else 0) as self._advance:
            yield

    @contextmanager
    def step(self, step: Step) -> Iterator[None]:
        """Measure one step; its seconds improve the estimates for the others."""
        self.skip(step)
        self._step, self._step_start = step, self._clock()
        self._share = self._resumed = 0.0
        self._phases = [(0.0, _ROUNDS), (_ROUNDS, 1.0)] if step.rounds else [(0.0, 1.0)]
        try:
            yield
            seconds = self._clock() - self._step_start
            self._pace.add(step, seconds)
            self.say(f"finished in {seconds:.1f} s")
            self._share = 1.0
            self._show(step.label)
        finally:
            self._step = None

    def skip(self, step: Step) -> None:
        """Remove a step that will not run from the estimate."""
        self._pending.remove(step)

    @contextmanager
    def progress(self, label: str, total: int, completed: int = 0) -> Iterator[Advance]:
        """Count the progress within the current step as a part of the overall progress."""
        first, last = self._phases.pop(0)
        self._phases = self._phases or [(last, last)]
        position: float = completed
        name = label if self._step is None else self._step.label

        def share() -> float:
            return first + (last - first) * position / max(total, 1)

        def advance(steps: float, note: str) -> None:
            nonlocal position
            position += steps
            self._share = share()
            self._show(f"{name}, {position:.0f}/{total}{', ' + note if note else ''}")

        if self._share == 0.0:
            # Rounds of before the step was resumed took no time in this run.
            self._share = self._resumed = share()
        self._show(name)
        yield advance

    def _show(self, note: str) -> None:
        elapsed, step_seconds = self._clock() - self._start, self._clock() - self._step_start
        gained, remaining, running = self._share - self._resumed, 0.0, None
        if self._step is not None:
            total = step_seconds / gained if gained > _EARLY else self._pace.guess(self._step)
            remaining = (1 - self._share) * total
            running = (self._step.epochs, total)
        remaining += sum(self._pace.guess(step, running) for step in self._pending)
        percent = max(self._percent, 100 * elapsed / max(elapsed + remaining, 1e-9))
        self._advance(percent - self._percent, note)
        self._percent = percent
