"""The options of ``pfl sweep``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

import typer

from pflcli.core.wording import as_typed
from pflcli.options.declaration import ArtifactPath, Choices, ChosenMethod, Options, Out, Seed, Typed, artifact_argument


@dataclass(frozen=True)
class Sweep(Options):
    """Score kNN-Per at all combinations of capacity, k, sigma and lambda, with one search per client.

    Writes table.csv, clients.csv (the lambda that each client chooses on validation samples) and sweep.png. Clients
    choose by validation samples alone, as in knn-per with cross_validate=0.

    Examples:
        pfl sweep runs/e -o runs/sweep
        pfl sweep runs/e -o runs/sweep2 --k 10 --sigma 0.1,1,10
    """

    NAME: ClassVar[str] = "sweep"
    HARDWARE: ClassVar[tuple[str, ...]] = ("threads",)

    source: Annotated[ArtifactPath, artifact_argument("Search in these embeddings.", "embeddings")]
    out: Out
    _: KW_ONLY
    capacity: Annotated[
        Sequence[float] | str | None,
        Typed(str, text=as_typed),
        typer.Option(
            help="Try these fractions (0 to 1) of each client's training samples in its store.",
            show_default="0,0.1,...,1",
            metavar="F,F",
        ),
    ] = None
    k: Annotated[
        Sequence[int] | str | None,
        Typed(str, text=as_typed),
        typer.Option(help="Try these numbers of neighbours.", show_default="1,3,5,7,10,12,14,16", metavar="N,N"),
    ] = None
    sigma: Annotated[
        Sequence[float] | str | None,
        Typed(str, text=as_typed),
        typer.Option(help="Try these kernel scales.", show_default="1", metavar="F,F"),
    ] = None
    weight: Annotated[
        Sequence[float] | str | None,
        Typed(str, text=as_typed),
        typer.Option(
            help="Try these values of lambda (0 to 1), the weight of the neighbours, shared by all clients.",
            show_default="0,0.1,...,1",
            metavar="F,F",
        ),
    ] = None
    representation: Annotated[
        str,
        Choices(("features", "logits")),
        typer.Option(
            help="Search neighbours among the network's representations (features) or its logits.",
        ),
    ] = "features"
    distance: Annotated[
        str,
        Choices(("euclidean", "cosine")),
        typer.Option(
            help="Compare samples by Euclidean distance (euclidean) or by angle (cosine).",
        ),
    ] = "euclidean"
    plot: Annotated[
        str | None,
        Choices(("capacity", "k", "sigma", "lambda")),
        typer.Option(
            help="Draw scores over this axis: capacity, k, sigma or lambda.",
            show_default="the first with several values",
            metavar="AXIS",
        ),
    ] = None
    method: ChosenMethod = None
    seed: Seed = None
