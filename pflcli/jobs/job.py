"""A job makes one artifact from others: a call of a command. A dry run tells what it would do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pflcli.artifacts.decision import Decision
from pflcli.artifacts.make import Outcome
from pflcli.artifacts.reader import Artifact, open_artifact
from pflcli.errors import ConflictError
from pflcli.execution import Execution
from pflcli.reporter import SILENT

Call = Callable[[Sequence[Artifact], Execution], Outcome]
"""A function that makes one artifact from its inputs."""

NOT_NEEDED = "not needed"
"""The decision for an artifact that no unfinished job needs."""
LATER = "after tuning"
"""The decision for an artifact whose request depends on the result of an unfinished job."""


@dataclass(frozen=True, eq=False)
class Job:
    """A call that writes one artifact to the folder ``out``."""

    name: str
    """the method's name, the kind of a shared artifact such as ``backbone``, or ``tune`` and a method"""
    out: Path
    call: Call
    inputs: tuple[Artifact | Job, ...]
    """the artifacts that ``call`` receives: existing ones, and those of other jobs"""
    after: tuple[Job, ...] = ()
    """jobs whose results ``call`` reads; one that fails does not stop this job"""
    seed: int = 0
    work: float = 1.0
    """estimated work in epochs over all clients' samples, or in local steps if the settings count steps"""
    has_rounds: bool = False
    """whether it trains for rounds before its clients predict"""
    is_result: bool = True
    """whether its artifact is a result; any other job is only run if an unfinished job needs it"""
    is_reference: bool = False
    """whether it runs a reference that was not named; it is left out if it does not suit the settings or samples"""
    is_part: bool = False
    """whether it is a part of the job that needs it, so that it is not listed separately and cannot be selected"""
    gathers: bool = False
    """whether it is made at the end, of those inputs that could be made; it is not listed either"""

    @property
    def label(self) -> str:
        """The job's name in messages and progress."""
        return f"seed {self.seed}, {self.name}"

    @property
    def input_jobs(self) -> tuple[Job, ...]:
        """The jobs that make its inputs."""
        return tuple(item for item in self.inputs if isinstance(item, Job))

    def run(self, execution: Execution, *, replaces: bool | None = None) -> Outcome:
        """Make the artifact from its inputs, which must exist.

        ``replaces`` says whether an artifact of another request is replaced; if None, ``execution.force`` decides. An
        artifact that is up to date is not made again.
        """
        opened = [item if isinstance(item, Artifact) else open_artifact(item.out) for item in self.inputs]
        call = partial(self.call, opened)
        return make_unless_there(call, execution) if replaces is None else call(replace(execution, force=replaces))


def make_unless_there(call: Callable[[Execution], Outcome], execution: Execution) -> Outcome:
    """Make an artifact unless it is up to date; with ``force``, an artifact of another request is replaced."""
    try:
        call(replace(execution, force=False, dry_run=True, reporter=SILENT))
    except ConflictError:
        if not execution.force:
            raise
        return call(execution)
    return call(replace(execution, force=False))


@dataclass(frozen=True, eq=False)
class Planned:
    """The result of the dry run of a job."""

    job: Job
    decision: str
    artifact: Artifact | None = None
    """the existing or future artifact; None if its request is not known yet"""
    conflict: ConflictError | None = None
    """the error to raise if the artifact of another request may not be replaced"""
    outcome: Outcome | None = None

    @property
    def is_done(self) -> bool:
        """Whether the artifact exists and is up to date."""
        return self.decision == Decision.UP_TO_DATE

    @property
    def is_ahead(self) -> bool:
        """Whether the artifact is still to be made."""
        return self.decision not in (Decision.UP_TO_DATE, NOT_NEEDED)
