"""``pfl list``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pflcli.cli import console
from pflcli.cli.from_options import Json
from pflcli.core import registry
from pflcli.options import completion

_GIVES_WAY = ("options", "from", "licence", "year", "needs", "representation", "paper")
"""Columns in the order in which they are omitted if the terminal is too narrow."""


def command(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="List methods, datasets, models, schemes, uploads or aggregators; without it, all of them.",
            autocompletion=completion.words(*registry.GROUPS),
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(
            help="Describe the one with this name or in this file, and its options.",
            show_default=False,
            autocompletion=completion.names_in_any_group,
        ),
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="Look for datasets in this folder.", metavar="DIR", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """List methods, datasets, models, schemes, upload steps and aggregators, with options and defaults.

    Examples:
        pfl list methods knn-per
        pfl list datasets --json
    """
    from pflcli.commands.listing import listing, options, overview

    if kind is None or name is None:
        entries = overview() if kind is None else listing(kind, root)
        if as_json:
            console.data(entries)
        else:
            body = [[str(value) for value in entry.values()] for entry in entries]
            console.table([*entries[0]], body, _GIVES_WAY, where=f"pfl list {kind} NAME")
        return
    card = options(kind, name)
    if as_json:
        console.data(card)
        return
    print(card["doc"] + "\n")
    rows = [list(field.values()) for field in card["options"]]
    if rows:
        console.table(["option", "type", "default", "meaning"], rows)
