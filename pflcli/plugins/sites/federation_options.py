"""The options of ``pfl federation``: agree on a method with real sites, and run its server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar

import typer

from pflcli.options import completion
from pflcli.options.declaration import (
    ASSIGNMENTS,
    METHOD,
    METHODS,
    SEEDS,
    ArtifactPath,
    Baseline,
    FilePath,
    Metrics,
    Options,
    Out,
    Positive,
    artifact_argument,
    merge_with_file,
    out_option,
)

Agreed = Annotated[ArtifactPath, artifact_argument("The federation that all places have agreed on.", "federation")]


@dataclass(frozen=True)
class CreateFederation(Options):
    """Make a federation of one or several methods of a pilot, with its clients, for real sites to agree on.

    Without a pilot, SOURCE is the table that sites agreed on (`pfl federation columns`); methods, --set and training
    settings say what they run. With --methods, sites also send scores, and `pfl federation run` ends with the table of
    `pfl compare`. The federation contains no sample.

    Examples:
        pfl federation create runs/c --method fedala --seed 0 -o fed
        pfl federation create agreed.toml --methods fedavg,ditto,panm -o fed
    """

    NAME: ClassVar[str] = "federation create"
    TRAINING_DEFAULT: ClassVar[str] = "that of the run, or else that of pfl train-global"

    source: Annotated[
        ArtifactPath,
        artifact_argument(
            "Run the methods of these predictions, or those that are named among the sites of this table.",
            "predictions",
            metavar="SOURCE",
        ),
    ]
    out: Out
    _: KW_ONLY
    method: Annotated[
        str | None,
        METHOD,
        typer.Option(
            help="Run this method among the sites of a table, or take it from a folder of `pfl compare`.",
            metavar="NAME",
            show_default="that of the run",
            autocompletion=completion.names("methods"),
        ),
    ] = None
    methods: Annotated[
        Sequence[str] | None,
        METHODS,
        typer.Option(
            help="Compare these methods, separated by commas; of a folder of `pfl compare`, all for those that can run"
            " among sites. METHOD@NAME is a variant with its own --set options.",
            metavar="NAME,NAME",
            show_default="one method",
            autocompletion=completion.comma_separated(completion.names("methods", "all")),
        ),
    ] = None
    settings: Mapping[str, Any] | None = None
    options: Annotated[
        Mapping[str, Any] | None,
        ASSIGNMENTS,
        typer.Option(
            "--set",
            help="Set an option of the method, with --methods as METHOD.KEY=VALUE; repeat it for more.",
            metavar="KEY=VALUE",
            callback=merge_with_file,
        ),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(
            help="Draw all random numbers from this seed; of a folder of `pfl compare`, take this one.",
            min=0,
            metavar="N",
            show_default="that of the run, or of the splits of the table",
        ),
    ] = None
    seeds: Annotated[
        Sequence[int] | None,
        SEEDS,
        typer.Option(
            help="With --methods: run them with each of these seeds, separated by commas.",
            metavar="N,N",
            show_default="those of the pilot, or --seed",
        ),
    ] = None
    tune: Annotated[
        int | None,
        typer.Option(
            help="With --methods and a table: run at most this many trials of each method with the first seed, and the"
            " others with the one that is best by --metric on validation samples.",
            min=2,
            metavar="N",
            show_default="no tuning",
        ),
    ] = None
    until_decided: Annotated[
        int | None,
        typer.Option(
            help="With --methods and a table: add seeds until the best method is shown to be better than every other"
            " one, or until there are this many; sites send scores after each.",
            min=2,
            metavar="MAX",
            show_default="no seed is added",
        ),
    ] = None
    metrics: Metrics = None
    positive: Positive = None
    baseline: Baseline = "fedavg"


@dataclass(frozen=True)
class CheckFederation(Options):
    """Show what a federation agrees on: the method, rounds, clients, and bytes sent in a round.

    It fails if this pfl has other code, or exchanges other tensors than the federation declares.

    Examples:
        pfl federation check fed
        pfl federation check fed --json
    """

    NAME: ClassVar[str] = "federation check"
    HAS_DRY_RUN: ClassVar[bool] = False
    HAS_FORCE: ClassVar[bool] = False

    federation: Agreed


@dataclass(frozen=True)
class RunFederation(Options):
    """Run the server of a federation, which has no samples, until the last round.

    Messages are files in a folder, which any program may carry. The server and the sites (`pfl site`) have the bytes of
    the simulation. The state is stored after each round; the same command continues. `updates.csv` has, for each site
    and round, the norm of its update (or of what it sent, if that is none), the distance to the mean of the others, its
    weight and training loss. From four sites on, the log names outliers: a norm that differs from the median, or a
    larger distance, by a factor of more than two and by more than five median absolute deviations, in logarithms. With
    differential privacy there is no table.

    Examples:
        pfl federation run fed --at exchange -o server
        pfl federation run fed --at exchange -o server --patience 3600
    """

    NAME: ClassVar[str] = "federation run"
    HARDWARE: ClassVar[tuple[str, ...]] = ("threads",)
    HAS_DRY_RUN: ClassVar[bool] = False
    HAS_FORCE: ClassVar[bool] = False

    federation: Agreed
    exchange: Annotated[
        FilePath, typer.Option("--at", help="Exchange messages with the sites in this folder.", metavar="DIR")
    ]
    out: Annotated[FilePath, out_option("Write the server's state to this folder.")]
    _: KW_ONLY
    patience: Annotated[
        float | None,
        typer.Option(
            help="Close a round without the sites that have not answered after this many seconds.",
            metavar="SECONDS",
            show_default="wait for all",
        ),
    ] = None
    at_least: Annotated[
        int | None,
        typer.Option(
            help="Close a round only if this many sites have answered when the patience is over.",
            metavar="N",
            show_default="half of the sites that are asked",
        ),
    ] = None


@dataclass(frozen=True)
class ShowStatus(Options):
    """Show what a server is doing: the round, who is awaited since when, and what each site answered last.

    It may run at the same time.

    Examples:
        pfl federation status server
        pfl federation status server --json
    """

    NAME: ClassVar[str] = "federation status"
    HAS_DRY_RUN: ClassVar[bool] = False
    HAS_FORCE: ClassVar[bool] = False

    server: Annotated[FilePath, typer.Argument(help="The folder of the server (pfl federation run).", metavar="DIR")]
