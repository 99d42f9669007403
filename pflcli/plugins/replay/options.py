"""The options of ``pfl replay``."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

import typer

from pflcli.options.declaration import ArtifactPath, FilePath, Options, artifact_argument, out_option


@dataclass(frozen=True)
class Replay(Options):
    """Repeat an artifact and everything that it was made from, and compare each with the original.

    Runs the command lines that the manifests record, from the dataset on. Seconds are not compared. The exit code is 5
    if a result differs by more than --tolerance, or at all on a machine like the original one.

    Examples:
        pfl replay runs/knn-per -o again
        pfl replay runs/c -o again --dry-run
    """

    NAME: ClassVar[str] = "replay"
    HARDWARE: ClassVar[tuple[str, ...]] = ("device", "threads", "engine", "jobs")

    artifact: Annotated[
        ArtifactPath,
        artifact_argument(
            "Repeat this artifact, or the comparison in this folder of `pfl compare`.",
            "predictions",
            "comparison",
            metavar="ARTIFACT",
        ),
    ]
    out: Annotated[
        FilePath,
        out_option(
            "Write the repeated artifacts to this folder, laid out like the originals. Those that are there and up to"
            " date are not made again."
        ),
    ]
    _: KW_ONLY
    tolerance: Annotated[
        float,
        typer.Option(
            help="On a machine with other versions or another processor, take absolute differences up to this one for"
            " rounding.",
            min=0.0,
            metavar="F",
        ),
    ] = 1e-4
