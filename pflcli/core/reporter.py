"""Reporters, which receive the messages and the progress of a running command."""

from __future__ import annotations

import sys
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


class StderrReporter:
    """Shows messages and progress on stderr: a bar on a terminal, one line in a notebook, otherwise several lines."""

    def say(self, text: str) -> None:
        """Print a line."""
        print(text, file=sys.stderr, flush=True)

    def detail(self, text: str) -> None:
        """Ignore the line."""

    @contextmanager
    def progress(self, label: str, total: int, completed: int = 0) -> Iterator[Advance]:
        """Show progress: a bar with ETA on a terminal, a line in a notebook, otherwise a line every 10 % or 30 s."""
        if total <= completed:
            yield lambda steps, note: None
        elif sys.stderr.isatty():
            with _show_bar(label, total, completed) as advance:
                yield advance
        elif _is_notebook():
            width = 0

            def rewrite(text: str) -> None:
                nonlocal width
                print(f"\r{text.ljust(width)}", end="", file=sys.stderr, flush=True)
                width = len(text)

            try:
                yield _describe_steps(rewrite, label, total, completed, seconds=(0.2, 0.2))
            finally:
                print("\n" * bool(width), end="", file=sys.stderr, flush=True)
        else:
            yield _describe_steps(self.say, label, total, completed, seconds=(1, 30))


@contextmanager
def _show_bar(label: str, total: int, completed: int) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Remaining
    from rich.table import Column

    screen = Console(stderr=True)
    whole = Column(no_wrap=True)
    # On a narrow terminal the note is truncated, and the numbers stay whole.
    note_column = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    columns = (
        TextColumn("{task.description}", table_column=whole), BarColumn(24 if screen.width >= _WIDE else 8),
        MofNCompleteColumn(table_column=whole), TimeElapsedColumn(table_column=whole),
        TextColumn("eta", table_column=whole), Remaining(table_column=whole),
        TextColumn("[dim]{task.fields[note]}", table_column=note_column),
    )  # fmt: skip
    with Progress(*columns, console=screen, expand=True) as bar:
        task = bar.add_task(label, total=total, completed=completed, note="")
        yield lambda steps, note: bar.update(task, advance=steps, note=note)


_WIDE = 80
"""Columns of a terminal from which a progress bar has its full width."""


def _describe_steps(
    write: Callable[[str], None], label: str, total: int, completed: float, seconds: tuple[float, float]
) -> Advance:
    """Return a function that describes progress to ``write``, as often as ``seconds`` say.

    Within the first number of seconds after a line there is no other, as short steps need no report. Then comes one at
    each 10 %, and after the second number of seconds in any case.
    """
    start_time = last_line = time.monotonic()
    start, tenth = completed, completed * 10 // total

    def advance(steps: float, note: str) -> None:
        nonlocal completed, last_line, tenth
        completed += steps
        now = time.monotonic()
        if (completed * 10 // total > tenth and now - last_line >= seconds[0]) or now - last_line > seconds[1]:
            tenth, last_line = completed * 10 // total, now
            remaining = (now - start_time) / (completed - start) * (total - completed) if completed > start else 0
            eta = f", {remaining:.0f} s left" if remaining >= 1 else ""
            write(f"{label}: {completed:.0f}/{total}{eta}{', ' + note if note else ''}")

    return advance


def _is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


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
                show(0, f"{count} of {total} clients trained")

        source.on_progress = show_within
        try:
            yield advance
        finally:
            source.on_progress = lambda count, total: None
