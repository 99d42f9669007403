"""``pfl show``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pflcli.cli import console
from pflcli.cli.from_options import Json
from pflcli.errors import UsageError
from pflcli.options import completion
from pflcli.options.declaration import numbers


def command(
    path: Annotated[Path, typer.Argument(help="Show this artifact.", autocompletion=completion.artifacts())],
    lineage: Annotated[
        bool, typer.Option("--lineage", help="Print a tree of all artifacts that it was made from.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check every file against its hash, and its contents.")
    ] = False,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            help="Draw the artifact: classes of each client, attention, neighbours or history of a method, or the "
            "figure of an evaluation, comparison, sweep or audit. The suffix is the format: .png, .svg or .pdf.",
            metavar="FILE.png",
            show_default=False,
        ),
    ] = None,
    attention: Annotated[
        Path | None,
        typer.Option(
            "--attention",
            help="Write the attention weights in predictions to this file: round, client, layer, target, weight.",
            metavar="FILE.csv",
            show_default=False,
        ),
    ] = None,
    rounds: Annotated[
        str,
        typer.Option(
            "--plot-rounds",
            help="Take the attention of these rounds, instead of the last one (--plot) or all (--attention).",
            metavar="N,N",
            show_default=False,
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Print what an artifact is, the request that made it, and its inputs.

    Examples:
        pfl show runs/knn-per --lineage --verify
        pfl show runs/c/comparison --plot accuracy.pdf
    """
    from pflcli.artifacts.open_by_path import open_one
    from pflcli.cli.lineage import tree
    from pflcli.commands import show
    from pflcli.evaluation.presentation import tables

    chosen = numbers(rounds, "--plot-rounds")
    if chosen and picture is None and attention is None:
        raise UsageError("--plot-rounds needs --plot or --attention", "--plot FILE.png")
    in_words = lineage and not as_json
    text = tree(show.trace(path, verify=verify), verified=verify) if in_words else []
    facts = {} if in_words else show.show(path, lineage=lineage, verify=verify)
    if picture is not None:
        show.plot(path, picture, chosen)
    if attention is not None:
        show.attention(path, attention, chosen)
    if as_json:
        console.data(facts)
    elif in_words:
        console.lines(text)
    elif facts["kind"] in tables.KINDS and not verify:
        console.scores(open_one(path), to_stderr=False)
    elif facts["kind"] == "audit" and not verify:
        console.attacks(open_one(path), to_stderr=False)
    else:
        console.facts(facts)
