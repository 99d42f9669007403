"""Run the jobs of a graph; if one fails, only the jobs that need its artifact are skipped."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter

from pflcli.artifacts import placement
from pflcli.artifacts.reader import Artifact, open_artifact
from pflcli.core.errors import (
    ComputationError,
    ConflictError,
    InputError,
    PflError,
    UnsuitedError,
    UsageError,
    out_of_memory,
)
from pflcli.core.execution import Execution
from pflcli.core.reporter import Reporter
from pflcli.core.wording import counted
from pflcli.workflow.jobs import on_ray
from pflcli.workflow.jobs.graph import LATER, Graph, Job, Planned
from pflcli.workflow.jobs.progress import OverallProgress


@dataclass
class Results:
    """The results of the jobs of a graph."""

    made: dict[Job, Artifact] = field(default_factory=dict)
    """artifacts of jobs that are results, if they were made or are up to date"""
    failed: dict[Job, PflError] = field(default_factory=dict)
    blocked: dict[Job, Job] = field(default_factory=dict)
    """jobs that cannot run, each with the failed job that it depends on"""
    unsuited: dict[str, str] = field(default_factory=dict)
    """names of jobs that are left out, each with the reason why the method does not suit the data"""

    def excludes(self, job: Job, reporter: Reporter) -> bool:
        """Return whether a job cannot run because one of its inputs failed or is left out."""
        causes = [
            self.blocked.get(item, item) for item in job.input_jobs if item in self.failed or item in self.blocked
        ]
        if causes:
            self.blocked[job] = causes[0]
        unsuited = [item for item in job.input_jobs if item.name in self.unsuited]
        if unsuited and job.name not in self.unsuited:
            self.unsuited[job.name] = self.unsuited[unsuited[0].name]
            if not unsuited[0].is_part:
                names = ", ".join(item.name for item in unsuited)
                reporter.say(f"{job.name} is left out because {names} is left out")
        return bool(causes) or job.name in self.unsuited

    def conclude(self, job: Job, error: PflError | None, reporter: Reporter, *, skip_unsuited: bool) -> None:
        """Record how a job ended."""
        if error is None:
            if job.is_result:
                self.made[job] = open_artifact(job.out)
        elif (skip_unsuited or job.is_reference) and isinstance(error, UnsuitedError):
            self.unsuited[job.name] = error.message
            reporter.say(f"{job.name} is left out: {error.message}")
        else:
            self.failed[job] = error
            reporter.say(f"{job.label} failed: {_reason(job, error)}")

    def report(self) -> list[str]:
        """Return the lines of an error: how many results are missing, why jobs failed, and what to type."""
        missing = [job for job in (*self.failed, *self.blocked) if job.is_result]
        lines = [f"{len(missing)} of {len(missing) + len(self.made)} runs failed; the table contains the others"]
        for job, error in self.failed.items():
            lines.append(f"{job.label}: {_reason(job, error)}")
            dependents = [other.name for other, cause in self.blocked.items() if cause is job and other.is_result]
            if dependents:
                lines.append(f"seed {job.seed}, {', '.join(dependents)}: not run without it")
        return [*lines, *dict.fromkeys(line for error in self.failed.values() for line in error.fix)]


def _reason(job: Job, error: PflError) -> str:
    """Return the message of the error without the method's name, which the label of the job contains."""
    return error.message.removeprefix(f"{job.name}: ")


@dataclass
class _LocalWorker:
    """Runs one job at a time in this process."""

    execution: Execution
    progress: OverallProgress
    running: tuple[Job, PflError | None] | None = None

    def has_room(self) -> bool:
        return self.running is None

    def start(self, item: Planned) -> None:
        self.running = item.job, attempt(item, self.execution, self.progress)

    def wait(self) -> tuple[Job, PflError | None]:
        assert self.running is not None
        result, self.running = self.running, None
        return result


def run(graph: Graph, execution: Execution, *, skip_unsuited: bool = False) -> Results:
    """Run the chosen unfinished jobs, each after the jobs that it needs: one by one or, on Ray, in parallel.

    With ``skip_unsuited``, a method that does not suit the data is left out with all seeds and does not count as
    failed; a reference that was not named is left out without it too. Raises ConflictError if another process is
    writing one of the artifacts.
    """
    reporter, results = execution.reporter, Results()
    finished = []
    for item in graph.items:
        if item.is_done:
            job = item.job
            placement.tidy_after_kill(job.out)  # a writer may have been killed before it cleaned up
            artifact = open_artifact(job.out)
            finished.append((job, artifact.manifest.made["seconds"]))
            if job.is_result:
                results.made[job] = artifact
    ahead = [item.job for item in graph.items if item.is_ahead]
    order = {job: number for number, job in enumerate(ahead)}
    sorter = TopologicalSorter(
        {job: [need for need in (*job.input_jobs, *job.after) if need in order] for job in order}
    )
    sorter.prepare()
    progress = OverallProgress(reporter, [*order], finished)
    workers: _LocalWorker | on_ray.RayWorkers = _LocalWorker(execution, progress)
    if execution.executor == "ray":
        workers = on_ray.RayWorkers(execution, attempt)
    ready: list[Job] = []
    with workers if isinstance(workers, on_ray.RayWorkers) else progress.overall():
        while sorter.is_active():
            ready = sorted([*ready, *sorter.get_ready()], key=order.__getitem__)
            if not (ready and workers.has_room()):
                job, error = workers.wait()
                results.conclude(job, error, reporter, skip_unsuited=skip_unsuited)
                sorter.done(job)
                continue
            job = ready.pop(0)
            if results.excludes(job, reporter):
                progress.skip(job)
                sorter.done(job)
            else:
                workers.start(graph.planned[job])
    return results


def run_selected(graph: Graph, execution: Execution, may_fail: Callable[[Job], bool], *, skip_unsuited: bool) -> None:
    """Run the chosen jobs that have what they need, and update the time of those that are up to date, as make expects.

    Raises InputError or ComputationError if a job fails, unless it ``may_fail``, or if what it needs does not exist.
    """
    lacking = graph.find_lacking()
    runnable = graph.part({*graph.chosen} - {*lacking})
    if runnable.chosen:
        execution.reporter.say(summarize(runnable))
    results = run(runnable, execution, skip_unsuited=skip_unsuited)
    for item in runnable.items:
        if item.is_done:
            item.job.run(execution, replaces=False)
    errors = [error for job, error in results.failed.items() if isinstance(error, UsageError) or not may_fail(job)]
    for job, need in lacking.items():
        source = graph.path(need)
        problem = f"cannot make {graph.path(job)}: it needs {source}, which does not exist"
        errors.append(ComputationError(problem, f"first --only {source}"))
    for error in errors:
        if isinstance(error, InputError) and not isinstance(error, UnsuitedError):
            raise error
        raise ComputationError(error.message, *error.fix)


def attempt(item: Planned, execution: Execution, progress: OverallProgress) -> PflError | None:
    """Run one job and return its error, or None; raises ConflictError if another process is writing the artifact."""
    replaces = None if item.decision == LATER else item.conflict is not None
    own = replace(execution, reporter=progress)
    return run_job(item.job, lambda: item.job.run(own, replaces=replaces), progress)


def run_job(job: Job, call: Callable[[], object], progress: OverallProgress) -> PflError | None:
    """Run a job by ``call``, measure its time, and return its error, or None; raises ConflictError."""
    try:
        with progress.job(job):
            call()
    except ConflictError:
        raise
    except PflError as error:
        return error.with_traceback(None)  # a traceback would keep the run, its engine and samples in memory
    except Exception as error:
        progress.detail(traceback.format_exc())
        return out_of_memory(error) or ComputationError(f"a bug: {type(error).__name__}: {error}")
    return None


def summarize(graph: Graph) -> str:
    """Return a line with the numbers of methods, references, seeds, and artifacts to make."""
    results = [job for job in graph.chosen if job.is_result]
    seeds = {job.seed for job in results}
    methods, references = ({job.name for job in results if job.is_reference == kind} for kind in (False, True))
    beside = f" and {counted(len(references), 'reference')}" if references else ""
    ahead = sum(item.is_ahead for item in graph.items)
    done = sum(item.is_done for item in graph.items)
    return (
        f"{counted(len(methods), 'method')}{beside}, {counted(len(seeds), 'seed')}: "
        f"{counted(ahead, 'artifact')} to make, {done} up to date"
    )
