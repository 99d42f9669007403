"""The options of ``pfl export``."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

import typer

from pflcli.options.declaration import (
    ArtifactPath,
    ChosenMethod,
    ChosenSeed,
    EncoderWeights,
    FilePath,
    Options,
    RunWeights,
    artifact_argument,
    out_option,
)


@dataclass(frozen=True)
class Export(Options):
    r"""Write one client's model to a folder that works without pfl: ONNX, the store of kNN-Per, and a script.

    A store contains the client's data. Needs `pip install 'pflcli\[export]'`.

    Examples:
        pfl export runs/knn-per --client w0012 -o model
        pfl export runs/fedavg --client w0012 -o model --force
    """

    NAME: ClassVar[str] = "export"
    HARDWARE: ClassVar[tuple[str, ...]] = ("device", "threads", "engine")
    HAS_DRY_RUN: ClassVar[bool] = False
    FORCE_HELP: ClassVar[str] = "Replace a folder that pfl export has written."

    source: Annotated[
        ArtifactPath, artifact_argument("Export the model with which a client made these predictions.", "predictions")
    ]
    out: Annotated[FilePath, out_option("Write the files to this folder.")]
    _: KW_ONLY
    client: Annotated[
        str | None,
        typer.Option(
            help="Export the model of the client with this name.", metavar="NAME", show_default="that of a site"
        ),
    ] = None
    weights: RunWeights = None
    encoder_weights: EncoderWeights = None
    method: ChosenMethod = None
    seed: ChosenSeed = None
