"""``compare --only``: make the artifacts of a comparison at selected paths in its folder, and no table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.decision import Decision
from pflcli.artifacts.make import Outcome
from pflcli.artifacts.reader import Artifact, open_artifact
from pflcli.comparison.runs import CHOOSING
from pflcli.comparison.tunings import Tuned, Tuner, is_tuning
from pflcli.comparison.variants import Variant
from pflcli.errors import ComputationError, InputError, PflError, UnsuitedError, UsageError, closest
from pflcli.execution import Execution
from pflcli.jobs.job import NOT_NEEDED, Job, Plan, list_decisions, plan, require_free, with_parts
from pflcli.jobs.run import run, summarize
from pflcli.jobs.shared_artifacts import BACKBONE


def make_jobs(
    out: Path,
    paths: Sequence[str],
    planned: Plan,
    execution: Execution,
    *,
    skip_unsuited: bool,
    grows: bool = False,
) -> None:
    """Make the artifacts at ``paths`` in ``out``, and the runs that are part of them; in a dry run, only check them.

    A tuning without a result is reported but is no error: its method keeps the user's options. Raises UsageError for a
    path that does not belong to the comparison, ConflictError for an artifact of another request, InputError if an
    artifact cannot be read or written, ComputationError if a job fails or an artifact that it needs does not exist.
    """
    chosen = {job: planned[job] for job in _select_jobs(out, paths, planned)}
    require_free(chosen.values(), execution, grows=grows)
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


def make_tunings(
    tuner: Tuner,
    variants: Sequence[Variant],
    paths: Sequence[str],
    planned: Plan,
    execution: Execution,
    *,
    skip_unsuited: bool,
) -> tuple[Tuned, list[str]]:
    """Make the artifacts at ``paths`` that are tunings, or that tunings need; ``planned`` are all such artifacts.

    Returns the chosen values and the other paths. Raises UsageError for the path of a tuning that the comparison lacks,
    ComputationError if an artifact at another path depends on a tuning that does not exist, and other errors as
    ``make_jobs`` does.
    """
    known = {_path(job, tuner.out) for job in planned}
    first = [path for path in paths if path in known or is_tuning(path)]
    others = [path for path in paths if path not in first]
    if first:
        make_jobs(tuner.out, first, planned, execution, skip_unsuited=skip_unsuited)
        planned = plan(planned)
    _require_tunings(tuner.out, others, tuner.jobs_by_variant(planned), planned, variants)
    return tuner.collect(variants, planned), others


def _require_tunings(
    out: Path, paths: Sequence[str], tunings: Mapping[str, Job], planned: Plan, variants: Iterable[Variant]
) -> None:
    names = {path.rsplit("/", 1)[-1] for path in paths}
    names |= {member for item in variants if item.is_stack and item.name in names for member in item.options["pool"]}
    for name, job in tunings.items() if paths else ():
        if name in (BACKBONE, *names) and not planned[job].is_done:
            raise _missing_input(", ".join(paths), _path(job, out))


def partitions_of(partitions: Mapping[int, Artifact], paths: Sequence[str]) -> dict[int, Artifact]:
    """Return the partitions of the seeds in ``paths``; all partitions if the paths contain no seed."""
    folders = {path.split("/")[0] for path in paths}
    return {seed: item for seed, item in partitions.items() if f"seed-{seed}" in folders} or dict(partitions)


def preview(out: Path, paths: Sequence[str], planned: Plan) -> Outcome:
    """Return the decisions for the artifacts at ``paths``, the result of a dry run."""
    decisions = list_decisions(planned[job] for job in _select_jobs(out, paths, planned))
    return Outcome(out, "comparison", f"dry run: {Decision.NEW}", "", {"plan": decisions, "jobs": []})


def last_made(out: Path, paths: Sequence[str]) -> Outcome:
    """Return the last existing artifact at ``paths`` in ``out``; if there is none, ``out`` itself."""
    for path in reversed(paths):
        if manifests.is_artifact(out / path):
            manifest = open_artifact(out / path).manifest
            facts = (manifest.fingerprint, manifest.summary, dict(manifest.request))
            return Outcome(out / path, manifest.kind, Decision.UP_TO_DATE, *facts)
    return Outcome(out, "comparison", NOT_NEEDED, "")


def _select_jobs(out: Path, paths: Sequence[str], planned: Plan) -> list[Job]:
    """Return the jobs at ``paths`` in ``out``, each after its parts; raises UsageError for an unknown path."""
    by_path = {_path(job, out): job for job in planned if not job.is_part}
    if not paths:
        raise UsageError("--only names no artifact", closest("", by_path))
    for path in paths:
        # Tuning may have changed which methods have runs in the folder CHOOSING since the paths were listed.
        if path not in by_path and Path(path).parts[1:2] != (CHOOSING,):
            raise UsageError(f"{path} does not belong to this comparison", closest(path, by_path))
    return with_parts(by_path[path] for path in paths if path in by_path)


def _missing_input(path: str, source: str) -> ComputationError:
    """Return the error for an artifact that needs ``source``, which does not exist."""
    return ComputationError(f"cannot make {path}: it needs {source}, which does not exist", f"first --only {source}")


def _path(job: Job, out: Path) -> str:
    return str(job.out.relative_to(out))
