"""A job makes one artifact from others. Jobs form a graph, which is planned by dry runs before anything is made.

Jobs implement ``compare`` with ``--tune``, ``--only``, ``--plan`` and ``-n``, and make the inputs of ``tune``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pflcli.artifacts.decision import Decision, require_outside
from pflcli.artifacts.make import Outcome
from pflcli.artifacts.reader import Artifact, expected_artifact, open_artifact
from pflcli.errors import ConflictError, OutgrownError
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


Plan = dict[Job, Planned]
"""The result of the dry run of each job, in the order of the jobs; a job comes after those that it needs."""


def plan(jobs: Iterable[Job]) -> Plan:
    """Return the plan of ``jobs``, given in an order in which they can run. Nothing is written."""
    planned: Plan = {}
    for job in jobs:
        planned[job] = _dry_run(job, planned)
    needed: set[Job] = set()
    for job in reversed(planned):
        if job in needed or (job.is_result and not planned[job].is_done):
            needed.update(job.input_jobs)
    for job, item in planned.items():
        if not (job.is_result or item.is_done or job in needed):
            planned[job] = replace(item, decision=NOT_NEEDED, conflict=None)
    return planned


def _dry_run(job: Job, planned: Plan) -> Planned:
    inputs = [planned[item].artifact if isinstance(item, Job) else item for item in job.inputs]
    known = [item for item in inputs if item is not None]
    if len(known) < len(inputs) or any(planned[other].is_ahead for other in job.after):
        return Planned(job, LATER)
    conflict = None
    try:
        outcome = job.call(known, Execution(dry_run=True, reporter=SILENT))
    except ConflictError as error:
        conflict = error
        outcome = job.call(known, Execution(dry_run=True, force=True, reporter=SILENT))
    artifact = expected_artifact(outcome.path, outcome.kind, outcome.fingerprint, outcome.request, known[0])
    return Planned(job, outcome.decision.removeprefix("dry run: "), artifact, conflict, outcome)


def require_free(planned: Iterable[Planned], execution: Execution, *, grows: bool = False) -> None:
    """Raise ConflictError if a job would replace an artifact of another request or a file that the command reads.

    If the runs of the jobs are continued (``grows``), what was made from shorter runs may be replaced.
    """
    planned = list(planned)
    for item in planned:
        if item.conflict is not None and not (execution.force or (grows and isinstance(item.conflict, OutgrownError))):
            raise item.conflict
    for item in planned:
        if item.is_ahead:
            require_outside(item.job.out, execution.reads)


def with_parts(jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs, each after its parts."""
    return list(dict.fromkeys(job for whole in jobs for job in (*_parts(whole), whole)))


def _parts(job: Job) -> list[Job]:
    return [part for item in job.input_jobs if item.is_part for part in (*_parts(item), item)]


def list_unfinished(planned: Plan, folder: Path) -> list[dict[str, Any]]:
    """Return the paths in ``folder`` of the artifacts that are still to be made, each with those that it ``needs``.

    The parts of a job are made with it and not listed. If two jobs have the same path, their needs are joined.
    """
    needs: dict[str, list[str]] = {}
    for job, item in planned.items():
        if item.is_ahead and not job.is_part:
            before = [need for part in with_parts([job]) for need in (*part.after, *part.input_jobs)]
            needs.setdefault(_path(job, folder), []).extend(_path(need, folder) for need in before if not need.is_part)
    return [
        {"path": path, "needs": [each for each in dict.fromkeys(before) if each in needs]}
        for path, before in needs.items()
    ]


def _path(job: Job, folder: Path) -> str:
    return str(job.out.relative_to(folder))


def list_decisions(planned: Iterable[Planned]) -> list[dict[str, Any]]:
    """Return the decision for each job as rows of a table."""
    return [
        {
            "seed": item.job.seed,
            "step": item.job.name,
            "path": str(item.job.out),
            "decision": str(Decision.REPLACE if item.conflict else item.decision),
        }
        for item in planned
    ]
