"""``pfl personalize``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pflcli import config
from pflcli.cli import completion, shared, training

if TYPE_CHECKING:
    from pflcli.artifacts.make import Outcome
    from pflcli.execution import Execution


@training.options("that of the backbone")
@shared.makes_artifact("device", "threads", "engine", "jobs", *shared.RAY)
def command(
    method: Annotated[
        str,
        typer.Argument(
            help="Run this method (`pfl list methods`).",
            metavar="METHOD",
            autocompletion=completion.names("methods"),
        ),
    ],
    source: Annotated[
        Path,
        typer.Argument(
            help="Run it on this partition, backbone or datastore, and on what that was made from.",
            metavar="SOURCE",
            autocompletion=completion.artifacts(*completion.SOURCES),
        ),
    ],
    out: shared.Out,
    execution: Execution,
    settings: Mapping[str, Any],
    weights: shared.Weights = None,
    options: shared.Set = None,
    choices: Annotated[
        Path | None,
        typer.Option(
            help="With --refit, use the choices of these predictions: of the same run without --refit.",
            metavar="PREDICTIONS",
            autocompletion=completion.artifacts("predictions"),
            show_default=False,
        ),
    ] = None,
    seed: shared.Seed = None,
) -> Outcome:
    """Run a personalization method, and store its predictions for every validation and test sample.

    Training settings that you do not set are those of the backbone, if SOURCE has one.

    Examples:
        pfl personalize knn-per runs/d -o runs/knn-per
        pfl personalize fedavg runs/d -o runs/fedavg
    """
    from pflcli.commands.personalize import personalize

    return personalize(
        method,
        source,
        out,
        options=config.assignments(options or []),
        settings=settings,
        weights=weights,
        choices=choices,
        seed=seed,
        execution=execution,
    )
