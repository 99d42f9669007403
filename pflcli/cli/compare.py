"""``pfl compare``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pflcli import config
from pflcli.cli import completion, console, shared, training
from pflcli.errors import UsageError

if TYPE_CHECKING:
    from pflcli.artifacts.make import Outcome
    from pflcli.execution import Execution


class Command(shared.Command):
    """Keeps the words as they were typed, which a plan repeats."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep ``args`` in ``ctx.meta[WORDS]``, and parse them."""
        ctx.meta[_WORDS] = tuple(args)
        return super().parse_args(ctx, args)


_WORDS = "pfl.words"


@training.options()
@shared.makes_artifact("device", "threads", "engine", "jobs", *shared.RAY)
def command(
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="Compare on this partition, or on several, each with the seed that it was made with.",
            metavar="PARTITION...",
            autocompletion=completion.artifacts("partition"),
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="Write all artifacts to this folder; the table goes to its subfolder comparison/.",
            metavar="DIR",
        ),
    ],
    settings: Mapping[str, Any],
    execution: Execution,
    context: typer.Context,
    methods: Annotated[
        str,
        typer.Option(
            help="Run these methods, separated by commas, or all; stack pools the others' predictions. METHOD@NAME is "
            "a variant with its own --set options.",
            metavar="NAME,NAME",
            autocompletion=completion.listed(completion.names("methods", "all", "stack")),
        ),
    ] = "all",
    seeds: Annotated[
        str | None,
        typer.Option(
            help="Train with each of these seeds, separated by commas (with one partition only).",
            metavar="N,N",
            show_default="that of the partition",
        ),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Set an option or a training setting of one method, such as ditto.lam=0.5; repeat it for more.",
            metavar="METHOD.KEY=VALUE",
            callback=shared.beside_file,
            autocompletion=completion.assignments_by_method,
        ),
    ] = None,
    weights: shared.Weights = None,
    baseline: shared.Baseline = "fedavg",
    target: shared.Target = None,
    link: shared.Link = None,
    metric: shared.Metrics = None,
    positive: shared.Positive = None,
    tune: shared.Tune = None,
    only: Annotated[
        str | None,
        typer.Option(
            help="Make only these artifacts, named by their folders in DIR such as seed-0/ditto, and no table.",
            metavar="PATH,PATH",
            show_default="all, and the table",
        ),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(
            help="Print a script that makes the same by many processes, as make, slurm or sh, and do nothing else.",
            metavar="FORM",
            show_default=False,
            autocompletion=completion.words("make", "slurm", "sh"),
        ),
    ] = None,
    as_json: shared.Json = False,
    quiet: shared.Quiet = False,
) -> Outcome:
    """Run several methods with several seeds, and summarize them in one table and picture.

    Artifacts that are already there are used again.

    Examples:
        pfl compare runs/p -o runs/c --methods fedavg,local --seeds 0,1,2
        pfl compare runs/p -o runs/c2 --methods fedavg,ditto --set ditto.lam=0.5
    """
    from pflcli.commands.compare import IncompleteError, compare

    if plan is not None:
        execution = _planning(execution, context)
    try:
        outcome = compare(
            sources,
            out,
            methods=shared.words(methods),
            seeds=None if seeds is None else shared.numbers(seeds, "--seeds"),
            options=config.by_owner(config.assignments(options or [])),
            settings=settings,
            weights=weights,
            baseline=baseline,
            target=target,
            link=link,
            metrics=None if metric is None else shared.words(metric),
            positive=positive,
            tune=tune,
            only=None if only is None else shared.words(only),
            execution=execution,
        )
    except IncompleteError as error:  # some methods failed; the table holds the others
        _show(error.outcome, dry_run=execution.dry_run, quiet=quiet)
        console.result(error.outcome, as_json=as_json)
        raise
    if plan is not None:
        console.lines([_script(plan, sources, out, outcome.summary["jobs"], context).rstrip("\n")])
        raise typer.Exit
    if only is None or execution.dry_run:
        _show(outcome, dry_run=execution.dry_run, quiet=quiet)
    return outcome


_PLAN = "--plan"


def _planning(execution: Execution, context: typer.Context) -> Execution:
    """Return a dry run, which says nothing; raises UsageError for options that a plan cannot have beside it."""
    from pflcli.reporter import SILENT

    for name, reason in (
        ("dry_run", "both do nothing but print"),
        ("force", "a plan replaces nothing"),
        ("only", "a plan is of all artifacts"),
        ("as_json", "a plan is a script"),
    ):
        if context.params[name]:
            option = "json" if name == "as_json" else name.replace("_", "-")
            raise UsageError(f"--plan and --{option} exclude each other: {reason}", f"leave out --{option}")
    return replace(execution, dry_run=True, reporter=SILENT)


def _script(plan: str, sources: list[Path], out: Path, jobs: list[dict[str, Any]], context: typer.Context) -> str:
    """Return the script for the command as it was typed, without ``--plan``."""
    from pflcli.jobs import scripts

    typed: list[str] = list(context.meta[_WORDS])
    if not any(word.partition("=")[0] == _PLAN for word in typed):
        raise UsageError("a configuration file cannot hold a plan", f"type {_PLAN} {plan}")
    words = ["pfl", "compare"]
    while typed:
        word = typed.pop(0)
        if word == _PLAN:
            typed.pop(0)
        elif not word.startswith(f"{_PLAN}="):
            words.append(word)
    threads = context.get_parameter_source("threads")
    chosen = threads is not None and threads.name != "DEFAULT"
    return scripts.script(plan, scripts.Plan(out, sources, {job["path"]: job["needs"] for job in jobs}, words, chosen))


def _show(outcome: Outcome, *, dry_run: bool, quiet: bool) -> None:
    from pflcli.artifacts.reader import open_artifact

    if quiet:
        return
    if dry_run:
        console.table(*_plan(outcome.summary["plan"]), to_stderr=True)
    else:
        console.scores(open_artifact(outcome.path), to_stderr=True)


def _plan(steps: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return a table with one row per step and one column per seed, and what a step needs under one seed."""
    seeds = sorted({step["seed"] for step in steps})
    decisions = {(step["step"], step["seed"]): step["decision"] for step in steps}
    needs = {step["step"]: step for step in steps if "disk_bytes" in step}
    rows = []
    for name in dict.fromkeys(step["step"] for step in steps):
        need = needs.get(name)
        cells = ["", ""] if need is None else [f"{need['processor_seconds']:.1f}", f"{need['disk_bytes'] / 1e6:.1f}"]
        rows.append([name, *(decisions.get((name, seed), "") for seed in seeds), *(cells if needs else ())])
    return ["", *(f"seed {seed}" for seed in seeds), *(["processor seconds", "MB of disk"] if needs else [])], rows
