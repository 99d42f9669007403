"""The options of ``pfl extract``."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from pflcli.options import completion
from pflcli.options.declaration import PATH, Options, Out

if TYPE_CHECKING:
    from pflcli.artifacts.reader import Artifact


@dataclass(frozen=True)
class Extract(Options):
    """Compute the representation of every sample with the backbone.

    Examples:
        pfl extract runs/b -o runs/e
        pfl extract runs/b -o runs/e2 --partition runs/p2
    """

    NAME: ClassVar[str] = "extract"
    HARDWARE: ClassVar[tuple[str, ...]] = ("device", "threads")

    source: Annotated[
        Path | str | Artifact,
        PATH,
        typer.Argument(
            help="Embed with this backbone.", metavar="BACKBONE", autocompletion=completion.artifacts("backbone")
        ),
    ]
    out: Out
    _: KW_ONLY
    partition: Annotated[
        Path | str | Artifact | None,
        PATH,
        typer.Option(
            help="Embed the samples of this partition, such as the clients' newer data.",
            metavar="PARTITION",
            autocompletion=completion.artifacts("partition"),
            show_default="that of the backbone",
        ),
    ] = None
