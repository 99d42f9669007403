"""The options of ``pfl export``."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from pflcli.options import completion
from pflcli.options.declaration import PATH, EncoderWeights, Options, RunWeights

if TYPE_CHECKING:
    from pflcli.artifacts.reader import Artifact


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
        Path | str | Artifact,
        PATH,
        typer.Argument(
            help="Export the model with which a client made these predictions.",
            metavar="PREDICTIONS",
            autocompletion=completion.artifacts("predictions"),
        ),
    ]
    out: Annotated[Path | str, PATH, typer.Option("--out", "-o", help="Write the files to this folder.", metavar="DIR")]
    _: KW_ONLY
    client: Annotated[
        str,
        typer.Option(
            help="Export the model of the client with this name.", metavar="NAME", autocompletion=completion.clients
        ),
    ]
    weights: RunWeights = None
    encoder_weights: EncoderWeights = None
