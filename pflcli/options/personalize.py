"""The options of ``pfl personalize``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar

import typer

from pflcli.options import completion
from pflcli.options.declaration import (
    METHOD,
    RAY,
    ArtifactPath,
    AttendanceFile,
    InitialWeights,
    OptionalArtifactPath,
    Options,
    Out,
    Seed,
    Set,
    artifact_argument,
)


@dataclass(frozen=True)
class Personalize(Options):
    """Run a personalization method, and store its predictions for every validation and test sample.

    Training settings that you do not set are those of the backbone, if SOURCE has one.

    Examples:
        pfl personalize knn-per runs/d -o runs/knn-per
        pfl personalize fedavg runs/d -o runs/fedavg
    """

    NAME: ClassVar[str] = "personalize"
    HARDWARE: ClassVar[tuple[str, ...]] = ("device", "threads", "engine", "jobs", *RAY)
    TRAINING_DEFAULT: ClassVar[str] = "that of the backbone"

    method: Annotated[
        str,
        METHOD,
        typer.Argument(
            help="Run this method (`pfl list methods`).",
            metavar="METHOD",
            autocompletion=completion.names("methods"),
        ),
    ]
    source: Annotated[
        ArtifactPath,
        artifact_argument(
            "Run it on this partition, backbone, embeddings or datastore; other inputs are found by lineage.",
            *completion.SOURCES,
            metavar="SOURCE",
        ),
    ]
    out: Out
    _: KW_ONLY
    settings: Mapping[str, Any] | None = None
    weights: InitialWeights = None
    attendance: AttendanceFile = None
    options: Set = None
    choices: Annotated[
        OptionalArtifactPath,
        typer.Option(
            help="With --refit, reuse the choices of these predictions, which the same run made without --refit.",
            metavar="PREDICTIONS",
            autocompletion=completion.artifacts("predictions"),
        ),
    ] = None
    seed: Seed = None
