"""The options of ``pfl new-client``."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from pflcli.options import completion
from pflcli.options.declaration import (
    FRACTIONS,
    PATH,
    Delimiter,
    EncoderWeights,
    Label,
    Layout,
    Options,
    Out,
    RunWeights,
    SplitColumn,
)

if TYPE_CHECKING:
    from pflcli.artifacts.reader import Artifact


@dataclass(frozen=True)
class NewClient(Options):
    """Personalize for a new client from its own samples, without a training round, and add its predictions.

    Examples:
        pfl new-client runs/knn-per me.npz --client me -o runs/with-me
        pfl new-client runs/fedavg me.npz --client me -o runs/me --split-column use
    """

    NAME: ClassVar[str] = "new-client"
    HARDWARE: ClassVar[tuple[str, ...]] = ("device", "threads", "engine")

    source: Annotated[
        Path | str | Artifact,
        PATH,
        typer.Argument(
            help="Add the client to these predictions.",
            metavar="PREDICTIONS",
            autocompletion=completion.artifacts("predictions"),
        ),
    ]
    data: Annotated[
        Path | str,
        PATH,
        typer.Argument(
            help="Read the client's samples from this .csv, .tsv, .parquet, .npz, .h5 or .hdf5 file, or from this"
            " folder LABEL/IMAGE.",
            metavar="DATA",
        ),
    ]
    out: Out
    _: KW_ONLY
    client: Annotated[str, typer.Option(help="Give the client this name.", metavar="NAME")]
    label: Label = None
    features: Annotated[
        str | None, typer.Option(help="Take the samples from this array of DATA.", metavar="NAME", show_default="x")
    ] = None
    split_column: SplitColumn = None
    fractions: Annotated[
        tuple[float, float, float] | None,
        FRACTIONS,
        typer.Option(
            help="Split the samples into these fractions for training, validation and test.",
            metavar="F,F,F",
            show_default="those of the partition",
        ),
    ] = None
    layout: Layout = None
    delimiter: Delimiter = None
    weights: RunWeights = None
    encoder_weights: EncoderWeights = None
