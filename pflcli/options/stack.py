"""The options of ``pfl stack``."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

import typer

from pflcli.options.declaration import ArtifactPaths, ChosenMethod, ChosenSeed, Options, Out, artifacts_argument


@dataclass(frozen=True)
class Stack(Options):
    """Pool the stored predictions of several methods into one, with exponents learned on validation samples.

    Examples:
        pfl stack runs/fedavg runs/knn-per -o runs/stack
        pfl stack runs/fedavg runs/knn-per -o runs/own --own
    """

    NAME: ClassVar[str] = "stack"

    sources: Annotated[
        ArtifactPaths, artifacts_argument("Pool these predictions, of one partition and seed.", "predictions")
    ]
    out: Out
    _: KW_ONLY
    gate: Annotated[
        bool,
        typer.Option(
            "--gate/--no-gate",
            help="Keep the global model for clients whose validation log-loss the pool does not lower.",
        ),
    ] = True
    own: Annotated[
        bool, typer.Option("--own", help="Learn exponents for each client, regularized towards the shared ones.")
    ] = False
    method: ChosenMethod = None
    seed: ChosenSeed = None
