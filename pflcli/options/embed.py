"""The options of ``pfl embed``."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from pflcli.core.wording import PathWord
from pflcli.options import completion
from pflcli.options.declaration import Choices, Download, OptionalPath, Options, Out, Root, Set, Typed
from pflcli.options.partition import dataset_word


def _encoder_word(value: str) -> str:
    """Return an encoder as a user types it: onnx: before the path of a file."""
    kind, colon, file = value.partition(":")
    return PathWord.of_parts(kind + colon, Path(file)) if kind == "onnx" else value


@dataclass(frozen=True)
class Embed(Options):
    """Compute features of a dataset's images with a frozen network, as a dataset for `pfl partition`.

    Examples:
        pfl embed writers --encoder onnx:net.onnx -o runs/features
        pfl embed writers --encoder torchvision:mobilenet_v2 --weights w.pt -o runs/f
    """

    NAME: ClassVar[str] = "embed"
    HARDWARE: ClassVar[tuple[str, ...]] = ("device", "threads")

    dataset: Annotated[
        str | Path,
        Typed(str, text=dataset_word),
        typer.Argument(
            help="Embed the images of this dataset: a name of `pfl list datasets`, or the folder that `pfl import -o`"
            " made.",
            metavar="DATASET",
            autocompletion=completion.datasets,
        ),
    ]
    out: Out
    _: KW_ONLY
    encoder: Annotated[
        str,
        Typed(str, text=_encoder_word),
        typer.Option(
            help="Compute features with this network: torchvision:NAME or timm:NAME with the weights of --weights, or"
            " onnx:FILE. Features are the input of the last linear layer, or the output of the ONNX file.",
            metavar="KIND:NAME",
        ),
    ]
    weights: Annotated[
        OptionalPath,
        typer.Option(
            help="Read the weights of a network of torchvision or timm from this file (.safetensors, .pt, .pth).",
            metavar="FILE",
        ),
    ] = None
    size: Annotated[
        int | None,
        typer.Option(
            help="Resize images to this side length in pixels before they are embedded.",
            min=1,
            max=4096,
            metavar="N",
            show_default="that of the network, mostly 224",
        ),
    ] = None
    normalize: Annotated[
        str | None,
        Choices(("imagenet", "none")),
        typer.Option(
            help="Normalize the channels of the images by ImageNet's mean and deviation (imagenet), or keep them in"
            " [0, 1] (none).",
            metavar="NAME",
            show_default="imagenet; for timm, as it recommends",
        ),
    ] = None
    output: Annotated[
        str | None,
        typer.Option(
            help="Take this tensor of the ONNX file as features.", metavar="NAME", show_default="its only output"
        ),
    ] = None
    keep_test: Annotated[
        bool,
        typer.Option(
            "--keep-test", help="Mark the dataset's published test samples, so that `pfl partition` tests on them."
        ),
    ] = False
    root: Root = None
    download: Download = False
    options: Set = None
