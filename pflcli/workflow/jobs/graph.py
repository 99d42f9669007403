"""Jobs, which make one artifact each, as a graph: planned by dry runs, selected by path, listed and run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pflcli.artifacts.decision import Decision, require_outside
from pflcli.artifacts.make import Outcome
from pflcli.artifacts.reader import Artifact, expected_artifact, open_artifact
from pflcli.core.errors import ConflictError, OutgrownError, UsageError, closest
from pflcli.core.execution import Execution
from pflcli.core.reporter import SILENT
from pflcli.core.settings import Settings

Call = Callable[[Sequence[Artifact], Execution], Outcome]
"""A function that makes one artifact from its inputs."""

NOT_NEEDED = "not needed"
"""The decision for an artifact that no unfinished job needs."""
LATER = "after tuning"
"""The decision for an artifact whose request depends on the result of an unfinished job."""
CHOOSING = "choosing"
"""Subfolder of a seed for the runs without ``refit`` that make the choices; also the prefix of their jobs' names."""


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


Plan = dict[Job, Planned]
"""The result of the dry run of each job, in the order of the jobs; a job comes after those that it needs."""


def plan(jobs: Iterable[Job], earlier: Plan | None = None) -> Plan:
    """Return the plan of ``jobs``, given in an order in which they can run, behind ``earlier``. Nothing is written."""
    planned = dict(earlier or {})
    for job in jobs:
        if job not in planned:
            planned[job] = _dry_run(job, planned)
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


@dataclass(frozen=True)
class Graph:
    """Jobs that write below ``folder``; those that are ``chosen`` are listed and made."""

    folder: Path
    planned: Plan
    chosen: tuple[Job, ...]
    grows: bool = False
    """whether its runs are continued, so that what was made from shorter runs may be replaced"""

    @classmethod
    def create(cls, folder: Path, planned: Plan, *, grows: bool = False) -> Graph:
        """Return the graph of all jobs; what no unfinished job needs is marked."""
        needed: set[Job] = set()
        for job in reversed(planned):
            if job in needed or (job.is_result and not job.gathers and not planned[job].is_done):
                needed.update(job.input_jobs)
        marked = {
            job: item
            if job.is_result or item.is_done or job in needed
            else replace(item, decision=NOT_NEEDED, conflict=None)
            for job, item in planned.items()
        }
        return cls(folder, marked, tuple(marked), grows)

    @property
    def items(self) -> list[Planned]:
        """The chosen jobs with their decisions."""
        return [self.planned[job] for job in self.chosen]

    def path(self, job: Job) -> str:
        """Return the path of a job in the folder, by which it is selected."""
        return str(job.out.relative_to(self.folder))

    def part(self, jobs: Iterable[Job]) -> Graph:
        """Return the graph in which only these jobs are chosen."""
        wanted = {*jobs}
        return replace(self, chosen=tuple(job for job in self.planned if job in wanted))

    def select(self, paths: Sequence[str] | None) -> Graph:
        """Return the graph in which the jobs at these paths, with their parts, are chosen; None chooses all jobs.

        Raises UsageError for an unknown path.
        """
        if paths is None:
            return self
        by_path = {self.path(job): job for job in self.planned if not (job.is_part or job.gathers)}
        if not paths:
            raise UsageError("--only names no artifact", closest("", by_path))
        for path in paths:
            # Tuning may have changed which methods have runs in the folder CHOOSING since the paths were listed.
            if path not in by_path and Path(path).parts[1:2] != (CHOOSING,):
                raise UsageError(f"{path} does not belong to this comparison", closest(path, by_path))
        chosen = [by_path[path] for path in paths if path in by_path]
        return self.part([*chosen, *(part for job in chosen for part in _parts(job))])

    def require_free(self, execution: Execution) -> None:
        """Raise ConflictError if a chosen job would replace another artifact, or a file that the command reads."""
        for item in self.items:
            may_replace = execution.force or (self.grows and isinstance(item.conflict, OutgrownError))
            if item.conflict is not None and not may_replace:
                raise item.conflict
        for item in self.items:
            if item.is_ahead:
                require_outside(item.job.out, execution.reads)

    def find_lacking(self) -> dict[Job, Job]:
        """Return the chosen jobs that cannot run, each with an unfinished job that it needs and that is not chosen."""
        lacking, chosen = dict[Job, Job](), {*self.chosen}
        for item in self.items:
            for need in (*item.job.after, *item.job.input_jobs) if item.is_ahead else ():
                if not self.planned[need].is_done and (need not in chosen or need in lacking):
                    lacking.setdefault(item.job, need)
        return lacking

    def list_decisions(self) -> list[dict[str, Any]]:
        """Return the decision for each chosen job as rows of a table."""
        return [
            {
                "seed": item.job.seed,
                "step": item.job.name,
                "path": str(item.job.out),
                "decision": str(Decision.REPLACE if item.conflict else item.decision),
            }
            for item in self.items
            if not item.job.gathers
        ]

    def list_unfinished(self) -> list[dict[str, Any]]:
        """Return the paths of the artifacts that are still to be made, each with those that it ``needs``.

        The parts of a job are made with it and not listed.
        """
        ahead = {job for job, item in self.planned.items() if item.is_ahead and not job.gathers}
        return [
            {
                "path": self.path(job),
                "needs": list(
                    dict.fromkeys(
                        self.path(need)
                        for part in (*_parts(job), job)
                        for need in (*part.after, *part.input_jobs)
                        if need in ahead and not need.is_part
                    )
                ),
            }
            for job in self.planned
            if job in ahead and not job.is_part
        ]


def _parts(job: Job) -> list[Job]:
    return [part for item in job.input_jobs if item.is_part for part in (*_parts(item), item)]


def estimate_epochs(training: Settings) -> float:
    """Estimate the work of a run: epochs over all clients' samples, or steps if the settings count steps."""
    return max(1.0, training.rounds * training.participation * (training.steps or training.epochs))
