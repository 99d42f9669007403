"""The parts of a comparison: its artifacts as jobs, which other processes and machines can make one by one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pflcli.artifacts import chain, placement
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.decision import Decision
from pflcli.artifacts.make import Outcome
from pflcli.artifacts.reader import Artifact, open_artifact
from pflcli.commands.comparison import runner
from pflcli.commands.comparison.equal_tuning import FOLDER, Tuned, Tuner
from pflcli.commands.comparison.plan import BACKBONE
from pflcli.commands.comparison.steps import CHOOSING, NOT_NEEDED, Step, Variant
from pflcli.commands.tune import NAME as TUNING
from pflcli.errors import ComputationError, InputError, UnsuitedError, UsageError, closest
from pflcli.execution import Execution
from pflcli.reporter import SILENT


def is_tuning(path: str) -> bool:
    """Return whether ``path``, inside the folder of the comparison, is that of a tuning."""
    return path.startswith(f"{FOLDER}/")


def require_free(steps: Iterable[Step], execution: Execution) -> None:
    """Raise ConflictError if a step would replace an artifact of another request, or a file that is read."""
    steps = list(steps)
    conflicts = [step.conflict for step in steps if step.conflict is not None]
    if conflicts and not execution.force:
        raise conflicts[0]
    for step in steps:
        if step.is_ahead:
            placement.require_outside(step.artifact.path, execution.reads)


def jobs(out: Path, steps: Sequence[Step], tuned: Tuned, variants: Sequence[Variant]) -> list[dict[str, Any]]:
    """Return the artifacts that are still to be made, each with those of them that it ``needs``, by path in ``out``.

    The run that chooses for a method under ``refit`` is a part of the job of this method: whether there is one may
    depend on what tuning chooses.
    """
    tunings = {name: _tuning(name) for name, choice in tuned.choices.items() if choice.values is None}
    on_backbone = _on_backbone(tunings, variants)
    backbone = [tunings[BACKBONE]] if BACKBONE in tunings else []
    needs: dict[str, list[str]] = {path: [] for path in tunings.values()}
    for path in on_backbone:  # the first makes what all of them are tuned on, which are artifacts of the comparison
        needs[path] = [*backbone, *(on_backbone[:1] if path != on_backbone[0] else [])]
    owners = {(step.seed, step.name): _owner(step.name) for step in steps}
    paths = {(step.seed, step.name): str(step.artifact.path.relative_to(out)) for step in steps}
    for step in steps:
        if not step.is_ahead:
            continue
        owner = owners[step.seed, step.name]
        sources = [owners[step.seed, name] for name in step.sources if (step.seed, name) in owners]
        before = [paths[step.seed, name] for name in sources if name != owner]
        before += [*backbone, *([tunings[owner]] if owner in tunings else [])]
        if step.name.removeprefix(f"{CHOOSING} ") in chain.KINDS:
            before += on_backbone[:1]
        needs.setdefault(paths[step.seed, owner], []).extend(before)
    return [
        {"path": path, "needs": [each for each in dict.fromkeys(before) if each in needs]}
        for path, before in needs.items()
    ]


def _on_backbone(tunings: Mapping[str, str], variants: Sequence[Variant]) -> list[str]:
    """Return the paths of the ``tunings`` that stand on a backbone, first the one that needs most artifacts."""
    order = list(chain.KINDS)
    tuned_on = {item.name: order.index(item.source) for item in variants if item.source and item.name != BACKBONE}
    names = [name for name in tunings if tuned_on.get(name, 0) > 0]
    return [tunings[name] for name in sorted(names, key=lambda name: -tuned_on[name])]


def _owner(name: str) -> str:
    """Return the step whose job makes the step ``name``: a run that chooses belongs to the method it chooses for."""
    variant = name.removeprefix(f"{CHOOSING} ")
    return name if variant in chain.KINDS else variant


def _tuning(name: str) -> str:
    return f"{FOLDER}/{name}/{TUNING}"


def tuned(tuner: Tuner, variants: Sequence[Variant], only: Sequence[str]) -> Tuned:
    """Make the tunings among ``only``, and return what is chosen for the other artifacts of ``only``.

    Raises UsageError for a tuning that the comparison does not have, ComputationError if one is needed that is not
    there: it was not made yet, or none of its trials has a score.
    """
    by_name = {variant.name: variant for variant in variants}
    read = replace(tuner, execution=replace(tuner.execution, dry_run=True, reporter=SILENT))
    for path in filter(is_tuning, only):
        name = path.split("/")[1]
        if path != _tuning(name) or name not in {BACKBONE, *by_name}:
            raise UsageError(f"{path} is no part of this comparison", closest(path, map(_tuning, by_name)))
        if name == BACKBONE or by_name[name].source == "partition":
            choice = tuner.choice(name, lambda: tuner.partition, tuner.settings)
        else:
            _require_chosen(read.tuned([]), path)
            choice = tuner.tuned([by_name[name]]).choices[name]
        if choice.problem:
            tuner.execution.reporter.say(f"{path} is not made: {choice.problem}")
    runs = [path for path in only if not is_tuning(path)]
    if not runs:
        return Tuned(tuner.options, tuner.settings)
    names = [BACKBONE, *(path.rsplit("/", 1)[-1] for path in runs)]
    names += [name for item in variants if item.is_stack and item.name in names for name in item.options["pool"]]
    choices = read.tuned([variant for variant in variants if variant.name in names])
    _require_chosen(choices, ", ".join(runs))
    return choices


def by_seed(partitions: Mapping[int, Artifact], only: Sequence[str]) -> dict[int, Artifact]:
    """Return the partitions of the seeds to which the paths of ``only`` belong; all, if there is none."""
    folders = {path.split("/")[0] for path in only}
    return {seed: item for seed, item in partitions.items() if f"seed-{seed}" in folders} or dict(partitions)


def _require_chosen(choices: Tuned, path: str) -> None:
    """Raise ComputationError if a tuning is missing, which the artifact at ``path`` needs."""
    for name, choice in choices.choices.items():
        if choice.values is None:
            raise _missing(path, _tuning(name))


def _missing(path: str, source: str) -> ComputationError:
    return ComputationError(f"{path} is not made: {source}, which it needs, is not there", f"first --only {source}")


def make_only(out: Path, only: Sequence[str], steps: Sequence[Step], execution: Execution, *, every: bool) -> Outcome:
    """Make the artifacts at the paths ``only`` in ``out``, with the runs that choose for them, and no others.

    With ``every`` (all methods are compared), a method that does not suit the data is left out. Raises UsageError for
    a path that is no part of the comparison, ConflictError for an artifact of another request, InputError if one
    cannot be read or written, and ComputationError if one fails, or needs another one that is not there.
    """
    by_path = {str(step.artifact.path.relative_to(out)): step for step in steps}
    if not only:
        raise UsageError("--only names no artifact", closest("", by_path))
    for path in only:
        if path not in by_path and Path(path).parts[1:2] != (CHOOSING,):
            raise UsageError(f"{path} is no part of this comparison", closest(path, by_path))
    owners = {(by_path[path].seed, _owner(by_path[path].name)) for path in only if path in by_path}
    chosen = [step for step in steps if (step.seed, _owner(step.name)) in owners]
    require_free(chosen, execution)
    if execution.dry_run:
        return Outcome(out, "comparison", f"dry run: {Decision.NEW}", "", {"plan": rows(chosen), "jobs": []})
    ready = {(step.seed, step.name) for step in steps if step.is_done}
    runnable, errors = [], []
    for step in chosen:
        absent = [name for name in step.sources if name != "partition" and (step.seed, name) not in ready]
        if absent and step.is_ahead:
            source = next(item for item in steps if (item.seed, item.name) == (step.seed, absent[0]))
            errors.append(_missing(str(step.artifact.path), str(source.artifact.path.relative_to(out))))
        else:
            runnable.append(step)
            ready.add((step.seed, step.name))
    results = runner.run(runnable, execution, every=every)
    for step in runnable:
        if step.is_done:
            step.act(step.inputs, execution)  # it is up to date, and its time is now that of this command
    for error in [*results.failed.values(), *errors]:
        if isinstance(error, InputError) and not isinstance(error, UnsuitedError):
            raise error
        raise ComputationError(error.message, *error.fix)
    return outcome(out, only)


def outcome(out: Path, only: Sequence[str]) -> Outcome:
    """Return the last of the artifacts at the paths ``only`` in ``out`` that are there, or else ``out``."""
    for path in reversed(only):
        if manifests.is_artifact(out / path):
            manifest = open_artifact(out / path).manifest
            facts = (manifest.fingerprint, manifest.summary, dict(manifest.request))
            return Outcome(out / path, manifest.kind, Decision.UP_TO_DATE, *facts)
    return Outcome(out, "comparison", NOT_NEEDED, "")


def rows(steps: Iterable[Step]) -> list[dict[str, Any]]:
    """Return the decision for each step, for people."""
    return [
        {
            "seed": step.seed,
            "step": step.name,
            "path": str(step.artifact.path),
            "decision": str(Decision.REPLACE if step.conflict else step.decision),
        }
        for step in steps
    ]
