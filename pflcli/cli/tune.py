"""``pfl tune``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pflcli import config
from pflcli.cli import completion, console, shared, training
from pflcli.wording import as_typed

if TYPE_CHECKING:
    from pflcli.artifacts.make import Outcome
    from pflcli.execution import Execution

_Out = Annotated[
    Path,
    typer.Option(
        "--out", "-o", help="Write all artifacts to this folder; the result is its subfolder tuning/.", metavar="DIR"
    ),
]
_Sampler = Annotated[
    str,
    typer.Option(
        help="Choose each next point by this sampler: grid, or optuna (pip install 'pflcli\\[tune]').",
        metavar="NAME",
        autocompletion=completion.words("grid", "optuna"),
    ),
]
_Minutes = Annotated[
    float | None,
    typer.Option(
        help="Start no further trial once all trials together have taken this many minutes.",
        metavar="M",
        show_default="no limit",
    ),
]


_Source = Annotated[
    Path,
    typer.Argument(
        help="Tune on this partition, or on a backbone or datastore made from it.",
        autocompletion=completion.artifacts(*completion.SOURCES),
    ),
]


@training.options("that of the backbone, if there is one")
@shared.makes_artifact("device", "threads", "engine", "jobs")
def command(
    method: Annotated[
        str,
        typer.Argument(help="Tune this method (`pfl list methods`).", autocompletion=completion.names("methods")),
    ],
    source: _Source,
    out: _Out,
    settings: Mapping[str, Any],
    execution: Execution,
    search: Annotated[
        list[str] | None,
        typer.Option(
            "--search",
            help="Try these values of an option or training setting; repeat it for more. With optuna also a range,"
            " 0.01..0.3.",
            metavar="KEY=VALUE,VALUE",
            callback=shared.beside_file,
            autocompletion=completion.searches,
            show_default="learning rates and the method's own grid",
        ),
    ] = None,
    sampler: _Sampler = "grid",
    trials: Annotated[int, typer.Option(help="Run at most this many trials.", metavar="N")] = 20,
    minutes: _Minutes = None,
    metric: shared.Metric = "accuracy",
    weights: shared.Weights = None,
    options: shared.Set = None,
    seed: shared.Seed = None,
    quiet: shared.Quiet = False,
) -> Outcome:
    """Choose options and training settings of a method by validation samples.

    Every trial is an ordinary artifact. Give DIR/tuning/best.toml to --config of personalize or compare.

    Examples:
        pfl tune ditto runs/p -o runs/t --search lr=0.03,0.1 --search lam=0.1,1
        pfl tune knn-per runs/d -o runs/t2 --search k=5,10 --metric log_loss
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
