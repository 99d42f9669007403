"""``pfl update-datastore``."""

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
    source: Annotated[
        Path,
        typer.Argument(
            help="Update this datastore of exact (Flat) indexes.",
            metavar="DATASTORE",
            autocompletion=completion.artifacts("datastore"),
        ),
    ],
    arriving: Annotated[
        Path,
        typer.Argument(
            help="Add the training samples of these embeddings.",
            metavar="EMBEDDINGS",
            autocompletion=completion.artifacts("embeddings"),
        ),
    ],
    out: shared.Out,
    execution: Execution,
    policy: Annotated[
        str,
        typer.Option(
            help="fifo replaces the oldest samples by the new ones; concatenate keeps all; fixed adds none.",
            metavar="fifo|concatenate|fixed",
            autocompletion=completion.words("fifo", "concatenate", "fixed"),
        ),
    ] = "fifo",
    first: Annotated[
        float,
        typer.Option(
            "--from", help="Skip the first samples of each client, up to this fraction (0 to 1).", metavar="F"
        ),
    ] = 0.0,
    last: Annotated[
        float, typer.Option("--to", help="Add each client's samples up to this fraction (0 to 1).", metavar="F")
    ] = 1.0,
    seed: shared.Seed = None,
) -> Outcome:
    """Add new samples to the clients' stores and remove old ones, without building them again.

    Examples:
        pfl update-datastore runs/d runs/e2 -o runs/d2
        pfl update-datastore runs/d runs/e2 -o runs/d3 --policy concatenate --to 0.5
    """
    from pflcli.commands.update_datastore import update_datastore

    return update_datastore(
        source, arriving, out, policy=policy, first=first, last=last, seed=seed, execution=execution
    )
