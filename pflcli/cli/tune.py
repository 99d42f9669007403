"""``pfl tune``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pflcli import config, registry
from pflcli.cli import console, shared, training
from pflcli.wording import as_typed

if TYPE_CHECKING:
    from pflcli.artifacts.make import Execution, Outcome

_Out = Annotated[
    Path, typer.Option("--out", "-o", help="Folder for all that is made; the result is its tuning/.", metavar="DIR")
]


@training.options("that of the backbone, if there is one")
@shared.makes_artifact("device", "threads", "engine", "jobs")
def command(
    method: Annotated[
        str,
        typer.Argument(help="Method, see `pfl list methods`.", autocompletion=lambda: registry.names("methods")),
    ],
    source: Annotated[Path, typer.Argument(help="A partition, or what the method stands on.")],
    out: _Out,
    settings: Mapping[str, Any],
    execution: Execution,
    search: Annotated[
        list[str] | None,
        typer.Option(
            "--search",
            help="Values to try of an option or training setting, repeatable; with optuna also a range, 0.01..0.3.",
            metavar="KEY=VALUE,VALUE",
            callback=shared.beside_file,
            show_default="learning rates and the method's own grid",
        ),
    ] = None,
    sampler: Annotated[
        str, typer.Option(help="Who says what is tried next: grid, or optuna (an extra).", metavar="NAME")
    ] = "grid",
    trials: Annotated[int, typer.Option(help="Trials at most.", metavar="N")] = 20,
    minutes: Annotated[
        float | None,
        typer.Option(help="Begin no trial once those before it took so long.", metavar="M", show_default="no end"),
    ] = None,
    metric: shared.Metric = "accuracy",
    weights: shared.Weights = None,
    options: shared.Set = None,
    seed: shared.Seed = None,
    quiet: shared.Quiet = False,
) -> Outcome:
    """Choose options and training settings of a method by validation samples.

    Every trial is an ordinary artifact. DIR/tuning/best.toml is for --config of personalize and compare.
    Example: pfl tune ditto runs/p -o runs/t --search lr=0.01,0.03,0.1 --search lam=0.1,1
    """
    from pflcli.commands.tune import tune

    outcome = tune(
        method,
        source,
        out,
        search=config.assignments(search or [], "--search"),
        options=config.assignments(options or []),
        settings=settings,
        weights=weights,
        sampler=sampler,
        trials=trials,
        minutes=minutes,
        metric=metric,
        seed=seed,
        execution=execution,
    )
    if not quiet:
        _show(outcome, dry_run=execution.dry_run)
    return outcome


def _show(outcome: Outcome, *, dry_run: bool) -> None:
    from pflcli.artifacts.kinds import tuning
    from pflcli.artifacts.reader import open_artifact
    from pflcli.commands.tuning import tables

    if not dry_run:
        console.table(*tables.readable(tuning.read(open_artifact(outcome.path))), to_stderr=True)
    elif plan := outcome.summary["plan"]:
        rows = [[*map(as_typed, step["values"].values()), step["decision"]] for step in plan]
        console.table([*plan[0]["values"], ""], rows, to_stderr=True)
