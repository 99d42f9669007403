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
WithoutRecords = Annotated[bool, typer.Option("--without-records", help="Send no records, on which no model depends.")]


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
    without_records: WithoutRecords = False
    fewest: Fewest = 5


@dataclass(frozen=True)
class CheckSite(Options):
    """Show what a site is asked to compute and what will leave it, and make its folder; sends nothing.

    Methods may also ask for records, such as how many validation samples a model predicts correctly. No model depends
    on them, and `--without-records` keeps them at the site.

    Examples:
        pfl site check p fed -o site
        pfl site check p fed -o site --without-records
    """

    NAME: ClassVar[str] = "site check"
    HAS_DRY_RUN: ClassVar[bool] = False
    HAS_FORCE: ClassVar[bool] = False

    partition: Annotated[ArtifactPath, artifact_argument("Take part with the samples of this partition.", "partition")]
    federation: Annotated[ArtifactPath, artifact_argument("Take part in this federation.", "federation")]
    out: Annotated[FilePath, out_option("Make the folder of the site here.")]
    _: KW_ONLY
    without_records: WithoutRecords = False
    fewest: Fewest = 5


@dataclass(frozen=True)
class ServeSite(Options):
    """Answer all messages to a site until the last one; its samples never leave it.

    Nothing leaves but what `pfl site check` shows. DIR/audit.csv has a row for each message in or out: time (UTC), run,
    phase, round, attempt, exchange, bytes, SHA-256 and tensors. It is written before the message leaves; after a kill,
    a message may leave again, with another row. After the last round, DIR has the predictions of the site, for
    `pfl predict`, `pfl evaluate` and `pfl export`. The same command continues.

    Examples:
        pfl site serve site --at exchange
        pfl site serve site --at exchange --hold --patience 86400
    """

    NAME: ClassVar[str] = "site serve"
    HARDWARE: ClassVar[tuple[str, ...]] = ("threads",)
    HAS_DRY_RUN: ClassVar[bool] = False
    HAS_FORCE: ClassVar[bool] = False

    site: SiteFolder
    exchange: Annotated[
        FilePath, typer.Option("--at", help="Exchange messages with the server in this folder.", metavar="DIR")
    ]
    _: KW_ONLY
    hold: Annotated[bool, typer.Option("--hold", help="Keep each answer until it is released (pfl site release).")] = (
        False
    )
    patience: Annotated[
        float | None,
        typer.Option(
            help="End, with exit code 5, if no question arrives within this many seconds.",
            metavar="SECONDS",
            show_default="wait until the last message",
        ),
    ] = None


@dataclass(frozen=True)
class ReleaseAnswer(Options):
    """Show the answer that `pfl site serve --hold` keeps, or release it by its SHA-256.

    It shows what would leave: the last row of DIR/audit.csv. The first eight digits of the SHA-256 suffice.

    Examples:
        pfl site release site
        pfl site release site 3f2a9c81
    """

    NAME: ClassVar[str] = "site release"
    HAS_DRY_RUN: ClassVar[bool] = False
    HAS_FORCE: ClassVar[bool] = False

    site: SiteFolder
    sha256: Annotated[
        str | None,
        typer.Argument(help="Release the answer with this SHA-256; without, only show it.", metavar="SHA256"),
    ] = None


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
