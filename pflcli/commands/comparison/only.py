"""``compare --only``: make the artifacts of a comparison in the given folders, and no table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.decision import Decision
from pflcli.artifacts.make import Outcome
from pflcli.artifacts.reader import Artifact, open_artifact
from pflcli.commands.comparison.runs import CHOOSING
from pflcli.commands.comparison.tunings import is_tuning
from pflcli.commands.comparison.variants import BACKBONE, Variant
from pflcli.errors import ComputationError, InputError, PflError, UnsuitedError, UsageError, closest
from pflcli.execution import Execution
from pflcli.jobs.job import NOT_NEEDED, Job, Plan, plan, require_free, rows, with_parts
from pflcli.jobs.run import run, summarize


def make_only(out: Path, only: Sequence[str], planned: Plan, execution: Execution, *, skip_unsuited: bool) -> None:
    """Make the artifacts at the paths ``only`` in ``out``, and the runs that are part of them.

    A tuning without a result is reported but is no error: its method keeps the user's options. Raises UsageError for a
    path that does not belong to the comparison, ConflictError for an artifact of another request, InputError if an
    artifact cannot be read or written, ComputationError if a job fails or an artifact that it needs does not exist.
    """
    chosen = {job: planned[job] for job in select_jobs(out, only, planned)}
    require_free(chosen.values(), execution)
    if execution.dry_run:
        return
    absent: list[PflError] = []
    runnable: Plan = {}
    for job, item in chosen.items():
        needed = [need for need in (*job.after, *job.input_jobs) if need in planned]
        unmade = [need for need in needed if not planned[need].is_done and need not in runnable]
        if unmade and item.is_ahead:
            absent.append(_missing_input(_path(job, out), _path(unmade[0], out)))
        else:
            runnable[job] = item
    execution.reporter.say(summarize(runnable))
    results = run(runnable, execution, skip_unsuited=skip_unsuited)
    for job, item in runnable.items():
        if item.is_done:
            job.run(execution, replaces=False)  # it is up to date; this updates its modification time, as make expects
    failed = [
        error
        for job, error in results.failed.items()
        if isinstance(error, UsageError) or not is_tuning(_path(job, out))
    ]
    for error in [*failed, *absent]:
        if isinstance(error, InputError) and not isinstance(error, UnsuitedError):
            raise error
        raise ComputationError(error.message, *error.fix)


def select_jobs(out: Path, only: Sequence[str], planned: Plan) -> list[Job]:
    """Return the jobs at the paths ``only`` in ``out``, each after its parts; raises UsageError for an unknown path."""
    by_path = {_path(job, out): job for job in planned if not job.is_part}
    if not only:
        raise UsageError("--only names no artifact", closest("", by_path))
    for path in only:
        # Tuning may have changed which methods have runs in the folder CHOOSING since the paths were listed.
        if path not in by_path and Path(path).parts[1:2] != (CHOOSING,):
            raise UsageError(f"{path} does not belong to this comparison", closest(path, by_path))
    return with_parts(by_path[path] for path in only if path in by_path)


def make_tunings(
    out: Path, only: Sequence[str], tuning: Plan, execution: Execution, *, skip_unsuited: bool
) -> tuple[list[str], Plan]:
    """Make the artifacts at the paths ``only`` that are jobs of ``tuning``; return the other paths and the new plan.

    Raises UsageError for the path of a tuning that the comparison lacks, and other errors as ``make_only``.
    """
    paths = {_path(job, out) for job in tuning}
    first = [path for path in only if path in paths or is_tuning(path)]
    if not first:
        return [*only], tuning
    make_only(out, first, tuning, execution, skip_unsuited=skip_unsuited)
    return [path for path in only if path not in first], plan(tuning)


def require_tunings(
    out: Path, only: Sequence[str], tunings: Mapping[str, Job], planned: Plan, variants: Iterable[Variant]
) -> None:
    """Raise ComputationError if an artifact at the paths ``only`` depends on a tuning that does not exist."""
    names = {path.rsplit("/", 1)[-1] for path in only}
    names |= {member for item in variants if item.is_stack and item.name in names for member in item.options["pool"]}
    for name, job in tunings.items():
        if name in (BACKBONE, *names) and not planned[job].is_done:
            raise _missing_input(", ".join(only), _path(job, out))


def _missing_input(path: str, source: str) -> ComputationError:
    """Return the error for an artifact that needs ``source``, which does not exist."""
    return ComputationError(f"cannot make {path}: it needs {source}, which does not exist", f"first --only {source}")


def seeds_of(partitions: Mapping[int, Artifact], only: Sequence[str]) -> dict[int, Artifact]:
    """Return the partitions of the seeds in the paths ``only``; all partitions if the paths contain no seed."""
    folders = {path.split("/")[0] for path in only}
    return {seed: item for seed, item in partitions.items() if f"seed-{seed}" in folders} or dict(partitions)


def outcome(out: Path, only: Sequence[str], left: Sequence[str], planned: Plan, execution: Execution) -> Outcome:
    """Return the last artifact that ``--only`` made, or in a dry run the plan of the paths ``left`` of ``only``."""
    if not execution.dry_run:
        return last_made(out, only)
    plan_rows = rows(planned[job] for job in select_jobs(out, left, planned))
    return Outcome(out, "comparison", f"dry run: {Decision.NEW}", "", {"plan": plan_rows, "jobs": []})


def last_made(out: Path, only: Sequence[str]) -> Outcome:
    """Return the last existing artifact at the paths ``only`` in ``out``; if there is none, ``out`` itself."""
    for path in reversed(only):
        if manifests.is_artifact(out / path):
            manifest = open_artifact(out / path).manifest
            facts = (manifest.fingerprint, manifest.summary, dict(manifest.request))
            return Outcome(out / path, manifest.kind, Decision.UP_TO_DATE, *facts)
    return Outcome(out, "comparison", NOT_NEEDED, "")


def _path(job: Job, out: Path) -> str:
    return str(job.out.relative_to(out))
