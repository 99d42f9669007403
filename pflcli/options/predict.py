"""The options of ``pfl predict``."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

import typer

from pflcli.options import completion
from pflcli.options.declaration import (
    ArtifactPath,
    Choices,
    ChosenMethod,
    ChosenSeed,
    EncoderWeights,
    FilePath,
    Layout,
    OptionalPath,
    RunWeights,
    TableOptions,
    artifact_argument,
    out_option,
)


@dataclass(frozen=True)
class Predict(TableOptions):
    """Predict classes with their probabilities, or numbers, for new samples with a client's personal model.

    Examples:
        pfl predict runs/knn-per digits.npz --client w0012 -o answers.csv
        pfl predict runs/knn-per digits.npz --client w0012 --answers label
    """

    NAME: ClassVar[str] = "predict"
    HARDWARE: ClassVar[tuple[str, ...]] = ("device", "threads", "engine")
    HAS_DRY_RUN: ClassVar[bool] = False
    FORCE_HELP: ClassVar[str] = "Replace the file at --out."

    source: Annotated[ArtifactPath, artifact_argument("Predict as a client of these predictions does.", "predictions")]
    data: Annotated[
        FilePath,
        typer.Argument(
            help="Predict for the samples in this table (.csv, .tsv, .txt, .csv.gz, .xlsx, .parquet, .feather, .dta,"
            " .sav or .jsonl), in this .npy, .npz, .h5 or .hdf5 file, in this folder of images, or in CSV from stdin"
            " (-).",
            metavar="DATA",
        ),
    ]
    _: KW_ONLY
    client: Annotated[
        str | None,
        typer.Option(
            help="Use the model of the client with this name; 'none' uses the global model.",
            metavar="NAME",
            show_default="that of a site",
        ),
    ] = None
    client_column: Annotated[
        str | None,
        typer.Option(help="Use for each sample the model of the client in this column of a table.", metavar="COL"),
    ] = None
    id_column: Annotated[
        str | None,
        typer.Option(
            help="Name samples in the output by this column of a table.", metavar="COL", show_default="numbers from 0"
        ),
    ] = None
    missing: Annotated[
        str,
        Choices(("error", "drop")),
        typer.Option(
            help="Refuse samples without a value (error) or leave them out (drop), if training stored no medians to"
            " fill them in.",
            metavar="NAME",
        ),
    ] = "error"
    out: Annotated[
        OptionalPath,
        out_option("Write the predictions to this .csv, .jsonl or .npz file.", "FILE", show_default="print them"),
    ] = None
    form: Annotated[
        str | None,
        Choices(("csv", "jsonl")),
        typer.Option(
            "--format",
            help="Print the predictions in this form: csv, or jsonl for one JSON object per line.",
            metavar="NAME",
            show_default="csv",
        ),
    ] = None
    features: Annotated[
        str | None,
        typer.Option(
            help="Take the samples from this array of DATA.", metavar="NAME", show_default="x, or the only one"
        ),
    ] = None
    layout: Layout = None
    unknown_words: Annotated[
        str,
        Choices(("error", "missing")),
        typer.Option(
            help="Refuse words that a column of words did not have in training (error), or treat them as missing values"
            " (missing).",
            metavar="NAME",
        ),
    ] = "error"
    weights: RunWeights = None
    encoder_weights: EncoderWeights = None
    answers: Annotated[
        str | None,
        typer.Option(
            help="Limit what a prediction reveals: full (probabilities), rounded:DIGITS, or label.",
            metavar="FORM",
            show_default="probabilities and their components",
            autocompletion=completion.words("full", "rounded:1", "label"),
        ),
    ] = None
    coverage: Annotated[
        float | None,
        typer.Option(
            help="Also return the set of classes, or the interval of numbers, that contains the true one with this"
            " probability (between 0 and 1), calibrated on the stored predictions for validation samples.",
            metavar="F",
        ),
    ] = None
    threshold: Annotated[
        str | None,
        Choices(("own", "pooled", "shrunk")),
        typer.Option(
            help="Calibrate sets on the client's own validation samples (own), on those of all clients (pooled), or on"
            " all with less weight for other clients' (shrunk).",
            metavar="NAME",
            show_default="own",
        ),
    ] = None
    method: ChosenMethod = None
    seed: ChosenSeed = None
