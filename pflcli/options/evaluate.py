"""The options of ``pfl evaluate``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from pflcli.options import completion
from pflcli.options.declaration import (
    PATHS,
    Baseline,
    ChosenMethod,
    ChosenSeed,
    Coverage,
    Link,
    Metrics,
    Options,
    Out,
    Positive,
    Target,
)

if TYPE_CHECKING:
    from pflcli.artifacts.reader import Artifact


@dataclass(frozen=True)
class Evaluate(Options):
    """Score predictions for each client and over all clients, methods and seeds.

    Examples:
        pfl evaluate runs/fedavg runs/knn-per -o runs/evaluation
        pfl evaluate runs/fedavg runs/knn-per -o runs/validation --split validation
    """

    NAME: ClassVar[str] = "evaluate"

    sources: Annotated[
        Sequence[Path | str | Artifact],
        PATHS,
        typer.Argument(
            help="Score these predictions, one or more artifacts.",
            metavar="PREDICTIONS...",
            autocompletion=completion.artifacts("predictions"),
        ),
    ]
    out: Out
    _: KW_ONLY
    split: Annotated[
        str,
        typer.Option(
            help="Score this split: test, validation, or train (after personalize --answer-train).",
            autocompletion=completion.words("test", "validation", "train"),
        ),
    ] = "test"
    baseline: Baseline = "fedavg"
    target: Target = None
    link: Link = None
    metrics: Metrics = None
    positive: Positive = None
    coverage: Coverage = None
    method: ChosenMethod = None
    seed: ChosenSeed = None
