"""The options of ``pfl train-global``."""

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
    Options,
    Out,
    Seed,
    Set,
    artifact_argument,
)


@dataclass(frozen=True)
class TrainGlobal(Options):
    """Train a global model, the backbone, on the clients of a partition.

    If interrupted, type the same command again to resume.

    Examples:
        pfl train-global runs/p -o runs/b --rounds 100
        pfl train-global runs/p -o runs/b2 --method fedprox --set mu=0.1
    """

    NAME: ClassVar[str] = "train-global"
    HARDWARE: ClassVar[tuple[str, ...]] = ("device", "threads", "engine", "jobs", *RAY)
    TRAINING_DEFAULT: ClassVar[str] = ""

    source: Annotated[ArtifactPath, artifact_argument("Train on the clients of this partition.", "partition")]
    out: Out
    _: KW_ONLY
    settings: Mapping[str, Any] | None = None
    method: Annotated[
        str,
        METHOD,
        typer.Option(
            help="Train with this method, which must be of kind server (`pfl list methods`).",
            autocompletion=completion.names("methods"),
        ),
    ] = "fedavg"
    weights: InitialWeights = None
    attendance: AttendanceFile = None
    options: Set = None
    seed: Seed = None
