"""The options of ``pfl update-datastore``."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

import typer

from pflcli.options.declaration import ArtifactPath, Choices, FilePath, Options, Out, Seed, artifact_argument


@dataclass(frozen=True)
class UpdateDatastore(Options):
    """Add new samples to the clients' stores and remove old ones, without rebuilding the stores.

    Examples:
        pfl update-datastore runs/d runs/e2 -o runs/d2
        pfl update-datastore runs/d runs/e2 -o runs/d3 --policy concatenate --to 0.5
    """

    NAME: ClassVar[str] = "update-datastore"

    source: Annotated[ArtifactPath, artifact_argument("Update this datastore of exact (Flat) indexes.", "datastore")]
    arriving: Annotated[FilePath, artifact_argument("Add the training samples of these embeddings.", "embeddings")]
    out: Out
    _: KW_ONLY
    policy: Annotated[
        str,
        Choices(("fifo", "concatenate", "fixed")),
        typer.Option(
            help="fifo replaces the oldest samples by the new ones; concatenate keeps all; fixed adds none.",
            metavar="fifo|concatenate|fixed",
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
