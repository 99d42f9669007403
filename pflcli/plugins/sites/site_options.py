"""The options of ``pfl site``: take part in a federation with the samples of one site."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from pflcli.options.declaration import (
    ArtifactPath,
    FilePath,
    FoldCase,
    LabelMap,
    OptionalPath,
    Options,
    SplitColumn,
    TableOptions,
    Typed,
    artifact_argument,
    out_option,
)
from pflcli.options.import_data import as_source

SiteFolder = Annotated[
    FilePath, typer.Argument(help="The folder that pfl site join or pfl site check made.", metavar="DIR")
]

Fewest = Annotated[
    int,
    typer.Option(
        help="Send no scores of fewer test samples than this many, but their number; for several methods.",
        min=0,
        metavar="N",
    ),
]


@dataclass(frozen=True)
class JoinSite(TableOptions):
    """Import a site's own table, split it, and make the site's folder: all before `pfl site serve`; sends nothing.

    It shows what `pfl site check` shows: what the site is asked to compute, and all that will leave it. DIR has the
    imported samples as `data` and their split as `partition`. The same command continues where it was interrupted.

    Examples:
        pfl site join fed --data own.csv --client charite -o site
        pfl site join fed --data charite.xlsx --sheet 2024 --na unknown -o site
    """

    NAME: ClassVar[str] = "site join"
    HAS_DRY_RUN: ClassVar[bool] = False
    HAS_FORCE: ClassVar[bool] = False

    federation: Annotated[ArtifactPath, artifact_argument("Take part in this federation.", "federation")]
    out: Annotated[FilePath, out_option("Make the folder of the site here.")]
    _: KW_ONLY
    data: Annotated[
        Path | str,
        Typed(str, text=as_source),
        typer.Option(
            help="Take part with these samples: whatever `pfl import` reads, such as a table, or what it, or `pfl"
            " partition`, made.",
            metavar="DATA",
        ),
    ]
    client: Annotated[
        str | None,
        typer.Option(
            help="Take part as this client of the federation.",
            metavar="NAME",
            show_default="the one with the name of the file",
        ),
    ] = None
    split_column: SplitColumn = None
    fold_case: FoldCase = None
    label_map: LabelMap = None
    fewest: Fewest = 5


@dataclass(frozen=True)
class CheckSite(Options):
    """Show what a site is asked to compute and what will leave it, and make its folder; sends nothing.

    Examples:
        pfl site check p fed -o site
        pfl site check p fed -o site --json
    """

    NAME: ClassVar[str] = "site check"
    HAS_DRY_RUN: ClassVar[bool] = False
    HAS_FORCE: ClassVar[bool] = False

    partition: Annotated[ArtifactPath, artifact_argument("Take part with the samples of this partition.", "partition")]
    federation: Annotated[ArtifactPath, artifact_argument("Take part in this federation.", "federation")]
    out: Annotated[FilePath, out_option("Make the folder of the site here.")]
    _: KW_ONLY
    fewest: Fewest = 5


@dataclass(frozen=True)
class ServeSite(Options):
    """Answer all messages to a site until the last one; its samples never leave it.

    Nothing leaves but what `pfl site check` shows. After the last round, DIR has the predictions of the site, for
    `pfl predict`, `pfl evaluate` and `pfl export`. The same command continues.

    Examples:
        pfl site serve site --at exchange
        pfl site serve site --at exchange --threads 1
    """

    NAME: ClassVar[str] = "site serve"
    HARDWARE: ClassVar[tuple[str, ...]] = ("threads",)
    HAS_DRY_RUN: ClassVar[bool] = False
    HAS_FORCE: ClassVar[bool] = False

    site: SiteFolder
    exchange: Annotated[
        FilePath, typer.Option("--at", help="Exchange messages with the server in this folder.", metavar="DIR")
    ]


@dataclass(frozen=True)
class AnswerMessage(Options):
    """Answer one message to a site, and print the file of the answer; after the last message, the predictions.

    Examples:
        pfl site answer site question.msg -o answer.msg
        pfl site answer site final.msg
    """

    NAME: ClassVar[str] = "site answer"
    HARDWARE: ClassVar[tuple[str, ...]] = ("threads",)
    HAS_DRY_RUN: ClassVar[bool] = False
    HAS_FORCE: ClassVar[bool] = False

    site: SiteFolder
    message: Annotated[FilePath, typer.Argument(help="Answer the message in this file.", metavar="MESSAGE")]
    _: KW_ONLY
    out: Annotated[
        OptionalPath, out_option("Also write the answer to this file.", "FILE", show_default="in DIR alone")
    ] = None
