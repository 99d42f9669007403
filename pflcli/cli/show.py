"""``pfl show``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pflcli.cli import console
from pflcli.cli import options as o


def command(
    path: Annotated[Path, typer.Argument(help="Any artifact.")],
    lineage: Annotated[bool, typer.Option("--lineage", help="Follow its inputs.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Check every file against its hash.")] = False,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            help="Draw who holds what in a partition, or the attention, neighbours or history that predictions hold.",
            metavar="FILE.png",
            show_default=False,
        ),
    ] = None,
    as_json: o.Json = False,
) -> None:
    """Say what an artifact is, which request made it, and from what.

    Example: pfl show runs/knn-per --lineage --verify
    """
    from pflcli.artifacts.artifact import open_artifact
    from pflcli.report import tables
    from pflcli.steps.show import plot, show

    found = show(path, lineage=lineage, verify=verify)
    if picture is not None:
        plot(path, picture)
    if as_json:
        console.data(found)
    elif found["kind"] in tables.OF and not lineage and not verify:
        console.scores(open_artifact(path), to_stderr=False)
    else:
        console.facts(found)
