"""The options of ``pfl audit``."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

import typer

from pflcli.options import completion
from pflcli.options.declaration import (
    ArtifactPath,
    ArtifactPaths,
    ChosenMethod,
    Options,
    Out,
    RunWeights,
    Seed,
    artifact_argument,
)


@dataclass(frozen=True)
class Audit(Options):
    """Measure what an attacker learns about clients' training samples, from predictions or from updates.

    Examples:
        pfl audit runs/knn-per -o runs/audit
        pfl audit runs/fedavg -o runs/audit-fedavg --answers label
    """

    NAME: ClassVar[str] = "audit"
    HARDWARE: ClassVar[tuple[str, ...]] = ("device", "threads", "engine")

    source: Annotated[ArtifactPath, artifact_argument("Attack the clients of these predictions.", "predictions")]
    out: Out
    _: KW_ONLY
    references: Annotated[
        ArtifactPaths,
        typer.Option(
            "--reference",
            help="Also run the likelihood-ratio attack, with these predictions as a reference: of the same method,"
            " trained on another split of the same samples. Give the option at least twice.",
            metavar="PREDICTIONS",
            autocompletion=completion.artifacts("predictions"),
        ),
    ] = ()
    canaries: Annotated[
        int,
        typer.Option(
            help="Also bound epsilon from below: repeat the rounds of a run with differential privacy with this many"
            " additional clients that send random updates, such as 200.",
            min=0,
            metavar="N",
        ),
    ] = 0
    answers: Annotated[
        str | None,
        typer.Option(
            help="Show the attacker only the output of pfl predict --answers: full (probabilities), rounded:DIGITS, or"
            " label.",
            metavar="FORM",
            show_default="also the client's model and store",
            autocompletion=completion.words("full", "rounded:1", "label"),
        ),
    ] = None
    updates: Annotated[
        bool,
        typer.Option(
            "--updates",
            help="Attack what clients upload in round 1 instead of predictions: how many samples of each class they"
            " have, and single samples. For fedavg and fedsgd on tables.",
        ),
    ] = False
    weights: RunWeights = None
    method: ChosenMethod = None
    seed: Seed = None
