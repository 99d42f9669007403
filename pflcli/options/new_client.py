"""The options of ``pfl new-client``."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

import typer

from pflcli.options.declaration import (
    FRACTIONS,
    ArtifactPath,
    ChosenMethod,
    ChosenSeed,
    EncoderWeights,
    FilePath,
    FoldCase,
    Label,
    LabelMap,
    Layout,
    Out,
    RunWeights,
    SplitColumn,
    TableOptions,
    artifact_argument,
)


@dataclass(frozen=True)
class NewClient(TableOptions):
    """Personalize for a new client from its own samples, without a training round, and add its predictions.

    Examples:
        pfl new-client runs/knn-per me.npz --client me -o runs/with-me
        pfl new-client runs/fedavg me.npz --client me -o runs/me --split-column use
    """

    NAME: ClassVar[str] = "new-client"
    HARDWARE: ClassVar[tuple[str, ...]] = ("device", "threads", "engine")

    source: Annotated[ArtifactPath, artifact_argument("Add the client to these predictions.", "predictions")]
    data: Annotated[
        FilePath,
        typer.Argument(
            help="Read the client's samples from this table (.csv, .tsv, .txt, .csv.gz, .xlsx, .parquet, .feather,"
            " .dta, .sav or .jsonl), from this .npz, .h5 or .hdf5 file, or from this folder LABEL/IMAGE.",
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
    fold_case: FoldCase = None
    label_map: LabelMap = None
    weights: RunWeights = None
    encoder_weights: EncoderWeights = None
    method: ChosenMethod = None
    seed: ChosenSeed = None
