"""``pfl train-global``."""

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


@training.options()
@shared.makes_artifact("device", "threads", "engine", "jobs", *shared.RAY)
def command(
    source: Annotated[
        Path,
        typer.Argument(
            help="Train on the clients of this partition.",
            metavar="PARTITION",
            autocompletion=completion.artifacts("partition"),
        ),
    ],
    out: shared.Out,
    execution: Execution,
    settings: Mapping[str, Any],
    method: Annotated[
        str,
        typer.Option(
            help="Train with this method, which must be of kind server (`pfl list methods`).",
            autocompletion=completion.names("methods"),
        ),
    ] = "fedavg",
    weights: shared.Weights = None,
    options: shared.Set = None,
    seed: shared.Seed = None,
) -> Outcome:
    """Train a global model, the backbone, on the clients of a partition.

    If interrupted, type the same command again to resume.

    Examples:
        pfl train-global runs/p -o runs/b --rounds 100
        pfl train-global runs/p -o runs/b2 --method fedprox --set mu=0.1
    """
    from pflcli.commands.train_global import train_global

    return train_global(
        source,
        out,
        method=method,
        options=config.assignments(options or []),
        settings=settings,
        weights=weights,
        seed=seed,
        execution=execution,
    )
