"""Run the steps of a comparison, one after the other; what fails costs those that need it, and no other."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pflcli.artifacts.artifact import Artifact, open_artifact
from pflcli.errors import ComputationError, ConflictError, InputError, PflError, UnsuitedError
from pflcli.steps.lineup import Step
from pflcli.steps.making import Manner
from pflcli.steps.pace import Whole


@dataclass
class Results:
    """How the steps ended: predictions by step, what went wrong, which methods do not suit the data."""

    predictions: dict[Step, Artifact] = field(default_factory=dict)
    failed: dict[Step, PflError] = field(default_factory=dict)
    blocked: dict[Step, Step] = field(default_factory=dict)
    unsuited: set[str] = field(default_factory=set)


def run(steps: Sequence[Step], manner: Manner, *, every: bool) -> Results:
    """Make what is not there yet; a step that fails costs those that need it, and no other.

    With ``every`` method compared, one that the data do not suit is left out.
    """
    results = Results({step: step.artifact for step in steps if step.is_method and step.is_done})
    todo = [step for step in steps if not step.is_done]
    done = [(step, open_artifact(step.artifact.path)) for step in steps if step.is_done]
    count = f"{len({step.name for step in steps if step.is_method})} methods, {len({s.seed for s in steps})} seeds"
    manner.watch.say(f"{count}: {len(todo)} artifacts to make, {len(done)} are up to date")
    whole = Whole(manner.watch, todo, [(step, artifact.manifest.made["seconds"]) for step, artifact in done])
    broken: dict[tuple[int, str], Step] = {}
    with whole.everything():
        for step in todo:
            cause = broken.get((step.seed, step.source))
            if cause is not None:
                results.blocked[step] = broken[step.seed, step.name] = cause
            if cause is not None or step.name in results.unsuited:
                whole.skip(step)
                continue
            try:
                with whole.step(step):
                    _make(step, replace(manner, force=step.conflict is not None, watch=whole))
            except UnsuitedError as error:
                if every:
                    results.unsuited.add(step.name)
                    manner.watch.say(f"{step.name} is left out: {error.message}")
                    continue
                results.failed[step] = error.with_traceback(None)
            except ConflictError:
                raise
            except PflError as error:
                results.failed[step] = error.with_traceback(None)
            except Exception as error:
                manner.watch.detail(traceback.format_exc())
                results.failed[step] = ComputationError(f"a bug: {type(error).__name__}: {error}")
            else:
                if step.is_method:
                    results.predictions[step] = open_artifact(step.artifact.path)
                continue
            broken[step.seed, step.name] = step
            manner.watch.say(f"{step.label} failed: {results.failed[step].message}")
    return results


def _make(step: Step, manner: Manner) -> None:
    origin = step.artifact.origin
    assert origin is not None
    step.act(open_artifact(origin.path), manner)


def complaint(results: Results) -> list[str]:
    """Return what failed and why, and what to type."""
    count = len(results.failed) + len(results.blocked)
    lines = [f"{count} of the runs failed; the table holds the others"]
    for step, error in results.failed.items():
        lines.append(f"{step.label}: {error.message.removeprefix(f'{step.name}: ')}")
        without = [other.name for other, cause in results.blocked.items() if cause is step]
        if without:
            lines.append(f"seed {step.seed}, {', '.join(without)}: not run without it")
    return [*lines, *dict.fromkeys(line for error in results.failed.values() for line in error.fix)]


def hopeless(results: Results) -> PflError:
    """Return the error for a comparison of nothing: what all have in common, if it is one thing."""
    errors = list(results.failed.values())
    if not errors:
        return InputError("none of the methods suits the data")
    if len({error.message for error in errors}) == 1:
        return errors[0]
    _, *lines = complaint(results)
    return ComputationError("all runs failed", *lines)
