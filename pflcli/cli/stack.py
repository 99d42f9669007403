"""``pfl stack``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pflcli.cli import completion, shared

if TYPE_CHECKING:
    from pflcli.artifacts.make import Outcome
    from pflcli.execution import Execution


@shared.makes_artifact()
def command(
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="Pool these predictions, of one partition and seed.",
            metavar="PREDICTIONS...",
            autocompletion=completion.artifacts("predictions"),
        ),
    ],
    out: shared.Out,
    execution: Execution,
    gate: Annotated[
        bool,
        typer.Option(
            "--gate/--no-gate", help="Keep the global model for clients whose validation samples gain nothing."
        ),
    ] = True,
    own: Annotated[
        bool, typer.Option("--own", help="Let each client have exponents of its own, near the common ones.")
    ] = False,
    method: shared.ChosenMethod = None,
    seed: shared.ChosenSeed = None,
) -> Outcome:
    """Pool the stored predictions of several methods into one, with exponents learned on validation samples.

    Examples:
        pfl stack runs/fedavg runs/knn-per -o runs/stack
        pfl stack runs/fedavg runs/knn-per -o runs/own --own
    """
    from pflcli.commands.stack import stack

    return stack(sources, out, gate=gate, own=own, method=method, seed=seed, execution=execution)
