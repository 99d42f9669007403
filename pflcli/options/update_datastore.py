"""The options of ``pfl update-datastore``."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from pflcli.options import completion
from pflcli.options.declaration import PATH, Options, Out, Seed

if TYPE_CHECKING:
    from pflcli.artifacts.reader import Artifact


@dataclass(frozen=True)
class UpdateDatastore(Options):
    """Add new samples to the clients' stores and remove old ones, without rebuilding the stores.

    Examples:
        pfl update-datastore runs/d runs/e2 -o runs/d2
        pfl update-datastore runs/d runs/e2 -o runs/d3 --policy concatenate --to 0.5
    """

    NAME: ClassVar[str] = "update-datastore"

    source: Annotated[
        Path | str | Artifact,
        PATH,
        typer.Argument(
            help="Update this datastore of exact (Flat) indexes.",
            metavar="DATASTORE",
            autocompletion=completion.artifacts("datastore"),
        ),
    ]
    arriving: Annotated[
        Path | str,
        PATH,
        typer.Argument(
            help="Add the training samples of these embeddings.",
            metavar="EMBEDDINGS",
            autocompletion=completion.artifacts("embeddings"),
        ),
    ]
    out: Out
    _: KW_ONLY
    policy: Annotated[
        str,
        typer.Option(
            help="fifo replaces the oldest samples by the new ones; concatenate keeps all; fixed adds none.",
            metavar="fifo|concatenate|fixed",
            autocompletion=completion.words("fifo", "concatenate", "fixed"),
        ),
    ] = "fifo"
    first: Annotated[
        float,
        typer.Option(
            "--from", help="Skip the first samples of each client, up to this fraction (0 to 1).", metavar="F"
        ),
    ] = 0.0
    last: Annotated[
        float, typer.Option("--to", help="Add each client's samples up to this fraction (0 to 1).", metavar="F")
    ] = 1.0
    seed: Seed = None
