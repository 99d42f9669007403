"""The options of ``pfl verify``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

import typer

from pflcli.options.declaration import (
    PATH,
    RAY,
    SEEDS,
    WORDS,
    Download,
    ExperimentWeights,
    FilePath,
    Options,
    Root,
    out_option,
)


@dataclass(frozen=True)
class Verify(Options):
    """Judge claims about methods: run the comparisons that they need, and say which claims are confirmed.

    A file in TOML has the claims: which method should be better than which, by what metric, on which data. Existing
    artifacts are reused.

    Examples:
        pfl verify claims.toml -o runs/claims
        pfl verify claims.toml -o runs/claims --dry-run
    """

    NAME: ClassVar[str] = "verify"
    HARDWARE: ClassVar[tuple[str, ...]] = ("device", "threads", "engine", "jobs", *RAY)

    claims: Annotated[FilePath, PATH, typer.Argument(help="Judge the claims in this file.", metavar="CLAIMS.toml")]
    out: Annotated[
        FilePath,
        out_option("Write each comparison to a subfolder of this folder; the verdicts go to its subfolder verdicts/."),
    ]
    _: KW_ONLY
    only: Annotated[
        Sequence[str] | None,
        WORDS,
        typer.Option(
            help="Judge only these claims, and those already judged in DIR. A path such as writers/comparison makes"
            " only this artifact in DIR, and no verdicts.",
            metavar="NAME,NAME",
            show_default="all",
        ),
    ] = None
    seeds: Annotated[
        Sequence[int] | None,
        SEEDS,
        typer.Option(
            help="Draw partitions and train with each of these seeds, separated by commas.",
            metavar="N,N",
            show_default="as many from 0 on as the claims need",
        ),
    ] = None
    until_decided: Annotated[
        int | None,
        typer.Option(
            help="Add seeds until every claim is decided, or until there are this many. Intervals are corrected for the"
            " repeated looks.",
            min=2,
            metavar="MAX",
            show_default="no seed is added",
        ),
    ] = None
    paper: Annotated[
        bool, typer.Option("--paper", help="Run experiments at the size of their paper, not at the small one.")
    ] = False
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="End with exit code 5 unless all claims are confirmed.",
        ),
    ] = False
    root: Root = None
    download: Download = False
    weights: ExperimentWeights = None
