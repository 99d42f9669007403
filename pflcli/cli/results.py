"""Output of commands that print more than the path of an artifact, and special cases of their command lines."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pflcli.cli import console
from pflcli.cli.from_options import Command, Show, show_outcome
from pflcli.core.errors import UsageError
from pflcli.core.wording import as_typed
from pflcli.options import completion

if TYPE_CHECKING:
    from pflcli.artifacts.make import Outcome
    from pflcli.core.execution import Execution
    from pflcli.workflow.prediction.prediction_file import PredictedSamples


class ImportCommand(Command):
    """Reads ``--standardize`` without a value as ``--standardize federation``; Typer alone requires a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Fill in the missing value, then parse the command line."""
        behind = [*args, ""][1:]
        alone = [
            arg == "--standardize" and value not in ("federation", "client") and "--" not in args[:place]
            for place, (arg, value) in enumerate(zip(args, behind, strict=True))
        ]
        explicit = [f"{arg}=federation" if is_alone else arg for arg, is_alone in zip(args, alone, strict=True)]
        parsed: list[str] = super().parse_args(ctx, explicit)
        return parsed


def show_table(outcome: Outcome, asked: Mapping[str, Any], execution: Execution, *, as_json: bool, quiet: bool) -> None:
    """Print the table of the artifact that a command made."""
    from pflcli.artifacts.reader import open_artifact

    if not quiet and not execution.dry_run:
        console.artifact(open_artifact(outcome.path), to_stderr=True)
    console.result(outcome, as_json=as_json)


def show_path(facts: Callable[[Any], Mapping[str, Any]]) -> Show:
    """Return a function that prints the path of what a command has written, or as JSON all ``facts`` of the result."""

    def show(result: Any, asked: Mapping[str, Any], execution: Execution, *, as_json: bool, quiet: bool) -> None:
        found = facts(result)
        if as_json:
            console.data(found)
        else:
            console.lines([str(found["path"])])

    return show


def show_trials(
    outcome: Outcome, asked: Mapping[str, Any], execution: Execution, *, as_json: bool, quiet: bool
) -> None:
    """Print the trials of a search, or in a dry run the decision for each."""
    from pflcli.artifacts.reader import open_artifact
    from pflcli.workflow.tuning import trials

    if not quiet:
        if not execution.dry_run:
            console.trials(open_artifact(outcome.path), to_stderr=True)
            others = "" if asked["method"] == "fedavg" else "fedavg,"
            execution.reporter.say(
                f"to use the best trial: pfl compare PARTITION -o DIR --methods {others}{as_typed(asked['method'])}"
                f" --config {shlex.quote(str(outcome.path / trials.BEST))}"
            )
        elif plan := outcome.summary["plan"]:
            rows = [[*map(as_typed, step["values"].values()), step["decision"]] for step in plan]
            console.table([*plan[0]["values"], ""], rows, to_stderr=True)
    console.result(outcome, as_json=as_json)


def show_predictions(
    result: PredictedSamples, asked: Mapping[str, Any], execution: Execution, *, as_json: bool, quiet: bool
) -> None:
    """Print predictions, or the path of the file that contains them."""
    from pflcli.workflow.prediction import prediction_file

    out = asked.get("out")
    if as_json:
        console.data(_facts(result, out))
    elif out is not None:
        console.lines([str(out)])
    else:
        console.content(prediction_file.FORMS[prediction_file.choose_form(None, asked.get("form"))](result))


def _facts(predicted: PredictedSamples, out: Path | None) -> dict[str, Any]:
    """Return the JSON value of predictions, without the predictions themselves if they are written to a file."""
    return {
        "path": None if out is None else str(out),
        "method": predicted.method,
        "client": predicted.client,
        "known": predicted.is_known,
        "tuned": dict(predicted.tuned),
        **({"unit": predicted.unit} if predicted.numbers else {"classes": list(predicted.classes)}),
        "samples": len(predicted.samples),
        **_calibrated(predicted),
        **({"answers": predicted.rows()} if out is None else {}),
    }


def _calibrated(predicted: PredictedSamples) -> dict[str, Any]:
    """Return how sets were calibrated; the threshold is null where they contain all labels."""
    sets = predicted.sets
    if sets is None:
        return {}
    threshold = sets.threshold if math.isfinite(sets.threshold) else None
    return {
        "sets": {
            "coverage": sets.coverage,
            "threshold": sets.rule,
            "highest_score": threshold,
            "validation_samples": sets.n_validation,
        }
    }


# compare


PLAN = Annotated[
    str | None,
    typer.Option(
        help="Print a script that does this with many processes (make, slurm or sh), and do nothing else.",
        metavar="FORM",
        show_default=False,
        autocompletion=completion.words("make", "slurm", "sh"),
    ),
]


class CompareCommand(Command):
    """Keeps the command line as it was typed, because the scripts of ``--plan`` repeat it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep ``args`` in ``ctx.meta[WORDS]``, and parse them."""
        ctx.meta[_WORDS] = tuple(args)
        return super().parse_args(ctx, args)


_WORDS = "pfl.words"


def show_comparison(
    outcome: Outcome, asked: Mapping[str, Any], execution: Execution, *, as_json: bool, quiet: bool
) -> None:
    """Print the table of a comparison, or in a dry run its plan."""
    if asked.get("only") is None or execution.dry_run:
        _show(outcome, dry_run=execution.dry_run, quiet=quiet)
    show_outcome(outcome, asked, execution, as_json=as_json, quiet=quiet)


def run_comparison(
    function: Callable[..., Outcome],
    arguments: dict[str, Any],
    context: typer.Context,
    *,
    as_json: bool,
    show_other: Callable[..., None] | None = None,
) -> Outcome:
    """Run ``compare``, or a command that makes comparisons and an artifact that ``show_other`` prints.

    With ``--plan``, print a script instead. If a run fails, what the others give is shown before the error.
    """
    from pflcli.workflow.comparison.request import IncompleteError

    execution, plan = arguments["execution"], arguments.pop("plan")
    if plan is not None:
        arguments["execution"] = _planning(execution, context)
    try:
        outcome = function(**arguments)
    except IncompleteError as error:
        show = show_other if show_other and error.outcome.kind != "comparison" else _show
        show(error.outcome, dry_run=execution.dry_run, quiet=context.params["quiet"])
        console.result(error.outcome, as_json=as_json)
        raise
    if plan is not None:
        _print_script(plan, arguments.get("sources", []), outcome, context)
    return outcome


_PLAN = "--plan"


def _planning(execution: Execution, context: typer.Context) -> Execution:
    """Return a silent dry run; raises UsageError for options that cannot be combined with ``--plan``."""
    from pflcli.core.reporter import SILENT

    if context.params.get("until_decided") is not None:
        raise UsageError(
            "--plan cannot be combined with --until-decided, which decides by the table whether to add a seed",
            "give the seeds: --seeds 0,1,2,3,4",
        )
    for name, reason in (
        ("dry_run", "both only print what would be done"),
        ("force", "a plan replaces nothing"),
        ("only", "a plan makes all artifacts"),
        ("as_json", "a plan is printed as a script"),
    ):
        if context.params[name]:
            option = "json" if name == "as_json" else name.replace("_", "-")
            raise UsageError(f"--plan cannot be combined with --{option}: {reason}", f"leave out --{option}")
    return replace(execution, dry_run=True, reporter=SILENT)


def _print_script(plan: str, sources: list[Path], outcome: Outcome, context: typer.Context) -> None:
    """Print the script for the command as it was typed, without ``--plan``, and end the command."""
    from pflcli.workflow.jobs import scripts

    typed: list[str] = list(context.meta[_WORDS])
    if not any(word.partition("=")[0] == _PLAN for word in typed):
        raise UsageError("--plan cannot be set in a configuration file", f"type {_PLAN} {plan}")
    words = ["pfl", str(context.info_name)]
    while typed:
        word = typed.pop(0)
        if word == _PLAN:
            typed.pop(0)
        elif not word.startswith(f"{_PLAN}="):
            words.append(word)
    threads = context.get_parameter_source("threads")
    chosen = threads is not None and threads.name != "DEFAULT"
    jobs = {job["path"]: job["needs"] for job in outcome.summary["jobs"]}
    planned = scripts.Plan(outcome.path.parent, sources, jobs, words, chosen, outcome.path.name)
    console.lines([scripts.script(plan, planned).rstrip("\n")])
    raise typer.Exit


def _show(outcome: Outcome, *, dry_run: bool, quiet: bool) -> None:
    from pflcli.artifacts.reader import open_artifact

    if quiet:
        return
    if dry_run:
        console.table(*_plan(outcome.summary["plan"]), to_stderr=True)
    else:
        console.scores(open_artifact(outcome.path), to_stderr=True)


def _plan(steps: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return a table with one row per step, one column per seed, and the estimated cost of a step with one seed."""
    seeds = sorted({step["seed"] for step in steps})
    decisions = {(step["step"], step["seed"]): step["decision"] for step in steps}
    needs = {step["step"]: step for step in steps if "disk_bytes" in step}
    rows = []
    for name in dict.fromkeys(step["step"] for step in steps):
        need, cells = needs.get(name), ["", ""] if needs else []
        if need is not None:
            cells = [f"{need['processor_seconds']:.1f}", f"{need['disk_bytes'] / 1e6:.1f}"]
        rows.append([name, *(decisions.get((name, seed), "") for seed in seeds), *cells])
    heading = ["processor seconds", "MB of disk"] if needs else []
    return ["", *(f"seed {seed}" for seed in seeds), *heading], rows
