"""Jobs form a graph, which is planned by dry runs before anything is made: what ``compare`` selects, lists and runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pflcli.artifacts.decision import Decision, require_outside
from pflcli.artifacts.reader import expected_artifact
from pflcli.errors import ConflictError, UsageError, closest
from pflcli.execution import Execution
from pflcli.jobs.job import LATER, NOT_NEEDED, Job, Planned
from pflcli.reporter import SILENT

CHOOSING = "choosing"
"""Subfolder of a seed for the runs without ``refit`` that make the choices; also the prefix of their jobs' names."""

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

    @classmethod
    def of(cls, folder: Path, planned: Plan) -> Graph:
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
        return cls(folder, marked, tuple(marked))

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
        require_free(self.items, execution)

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


def require_free(planned: Sequence[Planned], execution: Execution) -> None:
    """Raise ConflictError if a job would replace an artifact of another request or a file that the command reads."""
    for item in planned:
        if item.conflict is not None and not execution.force:
            raise item.conflict
    for item in planned:
        if item.is_ahead:
            require_outside(item.job.out, execution.reads)


def _parts(job: Job) -> list[Job]:
    return [part for item in job.input_jobs if item.is_part for part in (*_parts(item), item)]
