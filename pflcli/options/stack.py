"""The options of ``pfl stack``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from pflcli.options import completion
from pflcli.options.declaration import PATHS, ChosenMethod, ChosenSeed, Options, Out

if TYPE_CHECKING:
    from pflcli.artifacts.reader import Artifact


@dataclass(frozen=True)
class Stack(Options):
    """Pool the stored predictions of several methods into one, with exponents learned on validation samples.

    Examples:
        pfl stack runs/fedavg runs/knn-per -o runs/stack
        pfl stack runs/fedavg runs/knn-per -o runs/own --own
    """

    NAME: ClassVar[str] = "stack"

    sources: Annotated[
        Sequence[Path | str | Artifact],
        PATHS,
        typer.Argument(
            help="Pool these predictions, of one partition and seed.",
            metavar="PREDICTIONS...",
            autocompletion=completion.artifacts("predictions"),
        ),
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
