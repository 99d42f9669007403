"""What all steps share: the words to whoever watches, and making an artifact once."""

from __future__ import annotations

import gc
import os
import platform
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from pflcli.artifacts import manifest as manifests
from pflcli.artifacts import placing
from pflcli.artifacts.artifact import open_artifact
from pflcli.artifacts.manifest import Draft
from pflcli.artifacts.store import Decision, Work, decide

Advance = Callable[[float, str], None]


class Watch(Protocol):
    """Whoever watches a step: a terminal, a log, or nobody."""

    def say(self, text: str) -> None:
        """Take a line that a user wants to see."""

    def detail(self, text: str) -> None:
        """Take a line that a user sees who asked for more (-v)."""

    def progress(self, label: str, total: int, done: int = 0) -> Any:
        """Return a context manager that gives ``advance(steps, note)``."""


class Silent:
    """Nobody watches."""

    def say(self, text: str) -> None:
        """Ignore the line."""

    def detail(self, text: str) -> None:
        """Ignore the line."""

    @contextmanager
    def progress(self, label: str, total: int, done: int = 0) -> Iterator[Advance]:
        """Give a function that does nothing."""
        yield lambda steps, note: None


SILENT = Silent()

_PATIENCE = 2.0
"""Seconds without a step after which a watcher is told what happens within it."""


class Speaks(Protocol):
    """What tells how far it is within a step: the engine."""

    heard: Callable[[str], None]


@contextmanager
def heard(watch: Watch, speaker: Speaks, label: str, total: int, done: int = 0) -> Iterator[Advance]:
    """Show progress by steps, and by what ``speaker`` says within those that take long."""
    told = time.monotonic()
    with watch.progress(label, total, done) as show:

        def advance(steps: float, note: str) -> None:
            nonlocal told
            told = time.monotonic()
            show(steps, note)

        def within(note: str) -> None:
            if time.monotonic() - told > _PATIENCE:
                show(0, note)

        speaker.heard = within
        try:
            yield advance
        finally:
            speaker.heard = lambda note: None


def counted(number: int, thing: str) -> str:
    """Return a number with its thing, in the plural unless there is one."""
    return f"{number} {thing}{'s' * (number != 1)}"


@dataclass(frozen=True)
class Outcome:
    """What a step did: the artifact, and why it was (or was not) made."""

    path: Path
    kind: str
    decision: str
    fingerprint: str
    summary: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Manner:
    """How an artifact is made, whatever it is; none of this changes a result."""

    force: bool = False
    dry_run: bool = False
    device: str = "auto"
    engine: str = "auto"
    threads: int = 0
    jobs: int = 0
    watch: Watch = SILENT
    reads: tuple[Path, ...] = ()
    """files and folders besides its inputs that the artifact is made from, or that say how"""

    def reading(self, *paths: Path | str | None) -> Manner:
        """Return this manner with more that is read."""
        return replace(self, reads=(*self.reads, *(Path(path) for path in paths if path is not None)))


def make(
    out: Path | str,
    draft: Draft,
    manner: Manner,
    build: Callable[[Work], tuple[dict[str, Any], dict[str, Any]]],
    *,
    extends: str = "",
    ahead: Sequence[str] = (),
    needs: int = 0,
) -> Outcome:
    """Make the artifact that ``draft`` describes, unless it is there already.

    ``build`` writes the files and returns the summary (facts that the request determines) and what was ``made``
    along the way (device, seconds of inputs). ``extends`` says what ``draft`` adds to the artifact at ``out``, if it
    holds all of it and may so take its place; ``ahead`` is said before it is made, or would be. ``needs`` is about how
    many bytes it will take on the disk.
    Raises ConflictError if ``out`` holds something else, or what is read; InputError if the disk has far too little.
    """
    out = Path(out)
    force = manner.force or bool(extends)
    decision, reason = decide(out, draft, force=force)
    if extends and decision is Decision.REPLACE:
        reason = extends
    for remains in placing.left(out):
        manner.watch.say(
            f"{remains} was left by a run that was killed while it replaced {out}; it goes when {out} is whole"
        )
    if decision is Decision.UP_TO_DATE:
        if not manner.dry_run:
            placing.tidy(out)
            touch(out)
        manner.watch.say(f"{out} is up to date")
        summary = open_artifact(out).manifest.summary
        return Outcome(out, draft.kind, decision, draft.fingerprint, summary, dict(draft.request))
    placing.require_outside(out, manner.reads)
    manner.watch.detail(f"{decision}: {reason}")
    warning = placing.require_disk(out, needs)
    for remark in (*ahead, *([warning] if warning else [])):
        manner.watch.say(remark)
    if manner.dry_run:
        manner.watch.say(f"would make {draft.kind} {out} ({decision}: {reason})")
        return Outcome(out, draft.kind, f"dry run: {decision}", draft.fingerprint, {}, dict(draft.request))
    if decision in (Decision.RESUME, Decision.REPLACE):
        manner.watch.say(f"{decision}: {reason}")
    began = _processor_seconds()
    with Work(out, draft, force=force) as work:
        if work.whole is not None:
            manner.watch.say(f"nothing is computed again: {out} lacked its last step alone")
            work.finish(work.whole)
            return Outcome(out, draft.kind, decision, draft.fingerprint, work.whole.summary, dict(draft.request))
        summary, made = build(work)
        if manner.jobs:
            gc.collect()  # worker processes have ended, and count, when nobody holds them any more
        busy = {"processor_seconds": round(_processor_seconds() - began, 3)}
        work.commit(summary, {"pfl": version("pflcli"), "python": platform.python_version(), **made, **busy})
    return Outcome(out, draft.kind, decision, draft.fingerprint, summary, dict(draft.request))


def touch(out: Path) -> None:
    """Let an artifact that is up to date be newer than its inputs, or make would ask for it again and again."""
    for path in (out / manifests.NAME, out):
        with suppress(OSError):  # another user's artifact serves as it is
            os.utime(path)


def _processor_seconds() -> float:
    """Return the seconds that processors have worked for this process, all its threads, and processes it has ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
