"""The options of ``pfl site``: take part in a federation with the samples of one site."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

import typer

from pflcli.options.declaration import ArtifactPath, FilePath, OptionalPath, Options, artifact_argument, out_option

SiteFolder = Annotated[FilePath, typer.Argument(help="The folder that pfl site check made.", metavar="DIR")]


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
    fewest: Annotated[
        int,
        typer.Option(
            help="Send no scores of fewer test samples than this many, but their number; for several methods.",
            min=0,
            metavar="N",
        ),
    ] = 5


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
