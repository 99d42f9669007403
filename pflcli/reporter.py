"""Reporters, which receive the messages and the progress of a running command."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

Advance = Callable[[float, str], None]


class Reporter(Protocol):
    """Receives messages and progress, and shows them on a terminal, in a log, or not at all."""

    def say(self, text: str) -> None:
        """Show a line to the user."""

    def detail(self, text: str) -> None:
        """Show a line to a user who typed -v."""

    def progress(self, label: str, total: int, completed: int = 0) -> Any:
        """Return a context manager whose value is ``advance(steps, note)``; ``completed`` of ``total`` are done."""


class NullReporter:
    """Shows nothing."""

    def say(self, text: str) -> None:
        """Ignore the line."""

    def detail(self, text: str) -> None:
        """Ignore the line."""

    @contextmanager
    def progress(self, label: str, total: int, completed: int = 0) -> Iterator[Advance]:
        """Yield a function that does nothing."""
        yield lambda steps, note: None


SILENT = NullReporter()


class StopRounds(Exception):
    """Raised by a reporter that needs no more rounds: a run then continues with the state after the last whole one.

    ``trained`` is how many of ``clients`` have completed the current training, if it was raised within one.
    """

    trained, clients = 0, 0


_PATIENCE_SECONDS = 2.0
"""Seconds without a finished step after which progress within the step is shown."""


class ReportsProgress(Protocol):
    """Reports progress within a step: the engine."""

    on_progress: Callable[[int, int], None]
    """called with how many of how many clients are trained"""


@contextmanager
def report_within(
    reporter: Reporter, source: ReportsProgress, label: str, total: int, completed: int = 0
) -> Iterator[Advance]:
    """Show progress by steps and, within long steps, by the clients that ``source`` has trained."""
    last_shown = time.monotonic()
    with reporter.progress(label, total, completed) as show:

        def advance(steps: float, note: str) -> None:
            nonlocal last_shown
            last_shown = time.monotonic()
            show(steps, note)

        def show_within(count: int, total: int) -> None:
            if time.monotonic() - last_shown > _PATIENCE_SECONDS:
                try:
                    show(0, f"{count} of {total} clients trained")
                except StopRounds as stop:
                    stop.trained, stop.clients = count, total
                    raise

        source.on_progress = show_within
        try:
            yield advance
        finally:
            source.on_progress = lambda count, total: None
