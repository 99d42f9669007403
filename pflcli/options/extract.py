"""The options of ``pfl extract``."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

import typer

from pflcli.options import completion
from pflcli.options.declaration import (
    ArtifactPath,
    ChosenMethod,
    ChosenSeed,
    OptionalArtifactPath,
    Options,
    Out,
    artifact_argument,
)


@dataclass(frozen=True)
class Extract(Options):
    """Compute the representation of every sample with the backbone.

    Examples:
        pfl extract runs/b -o runs/e
        pfl extract runs/b -o runs/e2 --partition runs/p2
    """

    NAME: ClassVar[str] = "extract"
    HARDWARE: ClassVar[tuple[str, ...]] = ("device", "threads")

    source: Annotated[ArtifactPath, artifact_argument("Embed with this backbone.", "backbone")]
    out: Out
    _: KW_ONLY
    partition: Annotated[
        OptionalArtifactPath,
        typer.Option(
            help="Embed the samples of this partition, such as the clients' newer data.",
            metavar="PARTITION",
            autocompletion=completion.artifacts("partition"),
            show_default="that of the backbone",
        ),
    ] = None
    layer: Annotated[
        str | None,
        typer.Option(
            help="Represent samples by the output of this layer of the network, such as body.1.",
            metavar="NAME",
            show_default="the input of the head",
        ),
    ] = None
    method: ChosenMethod = None
    seed: ChosenSeed = None
