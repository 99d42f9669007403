"""The options of ``pfl audit``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from pflcli.options import completion
from pflcli.options.declaration import PATH, PATHS, Options, Out, RunWeights, Seed

if TYPE_CHECKING:
    from pflcli.artifacts.reader import Artifact


@dataclass(frozen=True)
class Audit(Options):
    """Measure what an attacker learns from clients' answers: which samples they were trained on.

    Examples:
        pfl audit runs/knn-per -o runs/audit
        pfl audit runs/fedavg -o runs/audit-fedavg --invert 2
    """

    NAME: ClassVar[str] = "audit"
    HARDWARE: ClassVar[tuple[str, ...]] = ("device", "threads", "engine")

    source: Annotated[
        Path | str | Artifact,
        PATH,
        typer.Argument(
            help="Attack the clients of these predictions.",
            metavar="PREDICTIONS",
            autocompletion=completion.artifacts("predictions"),
        ),
    ]
    out: Out
    _: KW_ONLY
    references: Annotated[
        Sequence[Path | str | Artifact],
        PATHS,
        typer.Option(
            "--reference",
            help="Compare with these predictions of the same method, made from another split of the same samples; "
            "repeat it, twice at least. They add the attack by likelihood ratio.",
            metavar="PREDICTIONS",
            show_default=False,
            autocompletion=completion.artifacts("predictions"),
        ),
    ] = ()
    invert: Annotated[
        int,
        typer.Option(
            help="Also draw what the models of this many clients, the most exposed ones, take for each class with the "
            "greatest certainty; of images only.",
            min=0,
            metavar="N",
        ),
    ] = 0
    canaries: Annotated[
        int,
        typer.Option(
            help="Also train the rounds of differential privacy again, with this many clients of random updates beside "
            "the others (200, say), to bound epsilon from below.",
            min=0,
            metavar="N",
        ),
    ] = 0
    answers: Annotated[
        str | None,
        typer.Option(
            help="Let the attacker see answers alone, as pfl predict --answers gives them: full (probabilities), "
            "rounded:DIGITS, or label.",
            metavar="FORM",
            show_default="the client's model and store, too",
            autocompletion=completion.words("full", "rounded:1", "label"),
        ),
    ] = None
    weights: RunWeights = None
    seed: Seed = None
