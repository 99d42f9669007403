"""Run the steps of a comparison; if one fails, only the steps that need it are skipped."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pflcli.artifacts import placement
from pflcli.artifacts.reader import Artifact, open_artifact
from pflcli.commands.comparison import side_by_side
from pflcli.commands.comparison.progress import OverallProgress
from pflcli.commands.comparison.steps import CHOOSING, Step
from pflcli.errors import ComputationError, ConflictError, InputError, PflError, UnsuitedError, out_of_memory
from pflcli.execution import Execution
from pflcli.wording import counted


@dataclass
class Results:
    """Results of the steps: predictions, errors, steps blocked by a failed one, and methods unsuited to the data."""

    predictions: dict[Step, Artifact] = field(default_factory=dict)
    failed: dict[Step, PflError] = field(default_factory=dict)
    blocked: dict[Step, Step] = field(default_factory=dict)
    unsuited: set[str] = field(default_factory=set)
    failed_sources: dict[tuple[int, str], Step] = field(default_factory=dict)
    """by seed and name, what cannot be used and the failed step that is the cause"""

    def excludes(self, step: Step, execution: Execution) -> bool:
        """Return whether a step cannot run, as one that it needs failed or is left out."""
        sources = [(step.seed, name) for name in step.sources]
        cause = next((self.failed_sources[source] for source in sources if source in self.failed_sources), None)
        if cause is not None:
            self.blocked[step] = self.failed_sources[step.seed, step.name] = cause
        unsuited = [name for name in step.sources if name in self.unsuited]
        if unsuited and step.name not in self.unsuited:
            self.unsuited.add(step.name)
            execution.reporter.say(f"{step.name} is left out: it needs {', '.join(unsuited)}, which is left out")
        return cause is not None or step.name in self.unsuited

    def conclude(self, step: Step, error: PflError | None, execution: Execution, *, every: bool) -> None:
        """Record how a step ended; with ``every`` a method that does not suit the data is left out."""
        if error is None:
            if step.is_method:
                self.predictions[step] = open_artifact(step.artifact.path)
        elif every and isinstance(error, UnsuitedError):
            self.unsuited |= {step.name, step.name.removeprefix(f"{CHOOSING} ")}
            execution.reporter.say(f"{step.name} is left out: {error.message}")
        else:
            self.failed[step] = error
            self.failed_sources[step.seed, step.name] = step
            execution.reporter.say(f"{step.label} failed: {_reason(step, error)}")


def run(steps: Sequence[Step], execution: Execution, *, every: bool) -> Results:
    """Run the pending steps, one after the other or, on Ray, side by side.

    With ``every`` (all methods are compared), a method that does not suit the data is left out and is no failure.
    """
    pending = [step for step in steps if step.is_ahead]
    finished = [(step, open_artifact(step.artifact.path)) for step in steps if step.is_done]
    for _, artifact in finished:
        placement.tidy_after_kill(artifact.path)  # a writer may have been killed before it tidied up
    results = Results({step: artifact for step, artifact in finished if step.is_method})
    methods, seeds = {step.name for step in steps if step.is_method}, {step.seed for step in steps}
    counts = f"{counted(len(methods), 'method')}, {counted(len(seeds), 'seed')}"
    execution.reporter.say(f"{counts}: {counted(len(pending), 'artifact')} to make, {len(finished)} up to date")
    progress = OverallProgress(
        execution.reporter, pending, [(step, artifact.manifest.made["seconds"]) for step, artifact in finished]
    )
    if execution.executor == "ray":
        side_by_side.run(
            pending,
            execution,
            failure,
            lambda step: results.excludes(step, execution),
            lambda step, error: results.conclude(step, error, execution, every=every),
        )
        return results
    with progress.overall():
        for step in pending:
            if results.excludes(step, execution):
                progress.skip(step)
                continue
            error = failure(step, replace(execution, force=step.conflict is not None, reporter=progress), progress)
            results.conclude(step, error, execution, every=every)
    return results


def failure(step: Step, execution: Execution, progress: OverallProgress) -> PflError | None:
    """Run one step and return its error, or None; raises ConflictError if another process writes the artifact."""
    try:
        with progress.step(step):
            step.act([open_artifact(source.path) for source in step.inputs], execution)
    except ConflictError:
        raise
    except PflError as error:
        return error.with_traceback(None)  # the traceback would keep the run, its engine and samples in memory
    except Exception as error:
        execution.reporter.detail(traceback.format_exc())
        return out_of_memory(error) or ComputationError(f"a bug: {type(error).__name__}: {error}")
    return None


def _reason(step: Step, error: PflError) -> str:
    """Return the error's message without the method's name, which precedes it already."""
    return error.message.removeprefix(f"{step.name}: ")


def failure_report(results: Results) -> list[str]:
    """Return the lines of an error: how many runs failed, why each failed, and what to type."""
    missing = [step for step in (*results.failed, *results.blocked) if step.is_method]
    lines = [f"{len(missing)} of {len(missing) + len(results.predictions)} runs failed; the table holds the others"]
    for step, error in results.failed.items():
        lines.append(f"{step.label}: {_reason(step, error)}")
        dependents = [other.name for other, cause in results.blocked.items() if cause is step and other.is_method]
        if dependents:
            lines.append(f"seed {step.seed}, {', '.join(dependents)}: not run without it")
    return [*lines, *dict.fromkeys(line for error in results.failed.values() for line in error.fix)]


def nothing_to_compare(results: Results) -> PflError:
    """Return the error for a comparison without results: the input error that all runs share, or that all failed."""
    errors = list(results.failed.values())
    if not errors:
        return InputError("none of the methods suits the data")
    if len({error.message for error in errors}) == 1 and isinstance(errors[0], InputError):
        return errors[0]
    _, *lines = failure_report(results)
    return ComputationError("all runs failed", *lines)
