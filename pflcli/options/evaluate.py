"""The options of ``pfl evaluate``."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

import typer

from pflcli.options.declaration import (
    ArtifactPaths,
    Baseline,
    Choices,
    ChosenMethod,
    ChosenSeed,
    Coverage,
    GroupScores,
    Link,
    Metrics,
    Options,
    Out,
    Positive,
    Target,
    artifacts_argument,
)


@dataclass(frozen=True)
class Evaluate(Options):
    """Score predictions for each client and over all clients, methods and seeds.

    Examples:
        pfl evaluate runs/fedavg runs/knn-per -o runs/evaluation
        pfl evaluate runs/fedavg runs/knn-per -o runs/validation --split validation
    """

    NAME: ClassVar[str] = "evaluate"

    sources: Annotated[
        ArtifactPaths, artifacts_argument("Score these predictions, one or more artifacts.", "predictions")
    ]
    out: Out
    _: KW_ONLY
    split: Annotated[
        str,
        Choices(("test", "validation", "train")),
        typer.Option(
            help="Score this split: test, validation, or train (after personalize --answer-train).",
        ),
    ] = "test"
    baseline: Baseline = "fedavg"
    target: Target = None
    link: Link = None
    metrics: Metrics = None
    positive: Positive = None
    coverage: Coverage = None
    group_scores: GroupScores = None
    method: ChosenMethod = None
    seed: ChosenSeed = None
