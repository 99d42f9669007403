"""``pfl extract``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pflcli.cli import completion, shared

if TYPE_CHECKING:
    from pflcli.artifacts.make import Outcome
    from pflcli.execution import Execution


@shared.makes_artifact("device", "threads")
def command(
    source: Annotated[
        Path,
        typer.Argument(
            help="Embed with this backbone.", metavar="BACKBONE", autocompletion=completion.artifacts("backbone")
        ),
    ],
    out: shared.Out,
    execution: Execution,
    partition: Annotated[
        Path | None,
        typer.Option(
            help="Embed the samples of this partition, such as the clients' newer data.",
            metavar="PARTITION",
            autocompletion=completion.artifacts("partition"),
            show_default="that of the backbone",
        ),
    ] = None,
) -> Outcome:
    """Compute the representation of every sample by the backbone.

    Examples:
        pfl extract runs/b -o runs/e
        pfl extract runs/b -o runs/e2 --partition runs/p2
    """
    from pflcli.commands.extract import extract

    return extract(source, out, partition=partition, execution=execution)
