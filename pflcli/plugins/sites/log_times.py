"""Times in the logs of processes that stay: UTC, to the second, such as 2026-11-29T19:30:12Z."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import replace

from pflcli.core.execution import Execution
from pflcli.core.reporter import Advance, Reporter

FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def read_clock() -> str:
    """Return the time."""
    return time.strftime(FORMAT, time.gmtime())


class TimedReporter:
    """Begins each line with its time."""

    def __init__(self, reporter: Reporter) -> None:
        """Pass lines on to ``reporter``."""
        self._reporter = reporter

    def say(self, text: str) -> None:
        """Show a line to the user."""
        self._reporter.say(f"{read_clock()} {text}")

    def detail(self, text: str) -> None:
        """Show a line to a user who typed -v."""
        self._reporter.detail(f"{read_clock()} {text}")

    def progress(self, label: str, total: int, completed: int = 0) -> AbstractContextManager[Advance]:
        """Show progress, whose label begins with the time at which it began."""
        shown: AbstractContextManager[Advance] = self._reporter.progress(f"{read_clock()} {label}", total, completed)
        return shown


def add_times(execution: Execution) -> Execution:
    """Return an execution whose messages begin with their times."""
    return replace(execution, reporter=TimedReporter(execution.reporter))
