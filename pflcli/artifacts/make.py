"""Makes an artifact unless it exists: the steps that all commands share."""

from __future__ import annotations

import gc
import os
import shlex
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pflcli.artifacts import disk, machine, placement
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.decision import Decision, decide, is_up_to_date, require_outside, require_place
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.reader import Artifact, open_artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import registry
from pflcli.core.errors import UsageError
from pflcli.core.execution import Execution
from pflcli.core.wording import PathWord

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Outcome:
    """The result of a command: the artifact, and the decision to make or keep it."""

    path: Path
    kind: str
    decision: str
    fingerprint: str
    summary: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)

    def table(self) -> pd.DataFrame:
        """Return the table of an evaluation, audit, comparison, sweep or tuning: a row per method, attack or trial.

        The index is the file's first column, such as ``method``; metrics have the units of docs/artifacts.md. Raises
        UsageError for artifacts without a table, and after a dry run.
        """
        import pandas as pd

        file = self.path / "table.csv"
        if not file.is_file():
            raise UsageError(f"{self.path}: this {self.kind} has no table", "pfl evaluate PREDICTIONS... -o DIR")
        return pd.read_csv(file, index_col=0)


class Built(NamedTuple):
    """The result of ``build``."""

    summary: dict[str, Any]
    """facts that follow from the request"""
    circumstances: dict[str, Any]
    """other facts, such as the device and the seconds of inputs; ``made`` in the manifest"""


Build = Callable[[ArtifactWriter], Built]
"""Writes the files of an artifact."""


def make(
    out: Path | str,
    spec: ArtifactSpec,
    execution: Execution,
    build: Build,
    *,
    extends: str = "",
    continued: Artifact | None = None,
    remarks: Iterable[str] = (),
    needed_bytes: int = 0,
    uncharged: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0),
) -> Outcome:
    """Make the artifact with this ``spec``, unless it exists.

    ``build`` writes the files. ``extends`` describes what ``spec`` adds to the artifact at ``out``; if it is not empty,
    the new artifact contains the old one and may replace it. The seconds in which ``continued``, an artifact whose work
    is not repeated, was made count as well. ``remarks`` are messages to show before building, or in a
    dry run; they are not evaluated if the artifact is up to date. ``needed_bytes`` is an estimate of its size.
    ``uncharged`` returns the wall-clock and processor seconds of this process that no artifact is charged with.
    Raises ConflictError if other files or an input are at ``out``, InputError if the disk is too full.
    """
    out, reporter = Path(out), execution.reporter
    force = execution.force or bool(extends)
    is_read_only = is_up_to_date(out, spec, force=force)
    if old := placement.find_replaced(out):
        reporter.say(f"found {old}, left behind by a killed run; it will be deleted when {out} is finished")
    if not is_read_only:
        require_place(out, spec)
        is_read_only = execution.dry_run
    with nullcontext() if is_read_only else ArtifactWriter(out, spec, force=force, reporter=reporter) as writer:
        decision, reason = decide(out, spec, force=force)
        if extends and decision is Decision.REPLACE:
            reason = extends
        outcome = Outcome(out, spec.kind, decision, spec.fingerprint, request=dict(spec.request))
        if decision is Decision.UP_TO_DATE:
            if not execution.dry_run:
                placement.tidy_after_kill(out)
                _touch(out)
            reporter.say(f"{out} is up to date")
            return replace(outcome, summary=open_artifact(out).manifest.summary)
        require_outside(out, execution.reads)
        reporter.detail(f"{decision}: {reason}")
        warning = disk.require_disk(out, needed_bytes)
        for remark in (*remarks, *([warning] if warning else [])):
            reporter.say(remark)
        if writer is None:
            reporter.say(f"would make {spec.kind} {out} ({decision}: {reason})")
            return replace(outcome, decision=f"dry run: {decision}")
        if decision in (Decision.RESUME, Decision.REPLACE):
            reporter.say(f"{decision}: {reason}")
        writer.prepare(resumes=decision is Decision.RESUME)
        return replace(outcome, summary=_fill(writer, execution, build, continued, uncharged))


def _fill(
    writer: ArtifactWriter,
    execution: Execution,
    build: Build,
    continued: Artifact | None,
    uncharged: Callable[[], tuple[float, float]],
) -> dict[str, Any]:
    """Build and commit the artifact, or finish the complete one of a killed writer; return its summary."""
    if writer.complete is not None:
        execution.reporter.say(f"only the last step of making {writer.out} was missing: nothing is recomputed")
        writer.finish(writer.complete)
        return writer.complete.summary
    made = {} if continued is None else continued.manifest.made
    writer.seconds, began = made.get("seconds", 0.0), _processor_seconds() - made.get("processor_seconds", 0.0)
    seconds, processor_seconds = uncharged()
    summary, circumstances = build(writer)
    writer.seconds += seconds - uncharged()[0]
    began += uncharged()[1] - processor_seconds
    if execution.has_workers:
        gc.collect()  # end unused worker processes, so that their seconds count
    processor = {"processor_seconds": round(_processor_seconds() - began, 3)}
    writer.commit(summary, {**_origin(writer, execution), **circumstances, **processor})
    return summary


def _origin(writer: ArtifactWriter, execution: Execution) -> dict[str, Any]:
    """Return the command, the versions, and the user's files, of which copies are written into the artifact."""
    recorded: dict[str, Any] = {"command": _line(execution.command, writer.out)} if execution.command else {}
    own_code = {name.partition(":")[0] for name in writer.spec.code}
    for name, file in registry.used_files().items():
        if name in own_code:  # kept to be read; code in an artifact is never run
            recorded["files"] = {**recorded.get("files", {}), name: file.name}
            writer.write(file.name, file.read_bytes())
    return {**recorded, **machine.describe()}


def _line(words: Iterable[str], out: Path) -> str:
    """Return a command line for the parent folder of the artifact ``out``."""
    folder = out.absolute().parent
    return shlex.join(word.relative_to(folder) if isinstance(word, PathWord) else word for word in words)


def _touch(out: Path) -> None:
    """Set the modification time of an up-to-date artifact to now: otherwise ``make`` would call pfl every time."""
    for path in (out / manifests.NAME, out):
        with suppress(OSError):  # it may belong to another user
            os.utime(path)


def _processor_seconds() -> float:
    """Return the processor seconds of this process, of all its threads and of its child processes that have ended."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system
