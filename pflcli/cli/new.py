"""``pfl new``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pflcli.cli import console
from pflcli.core import registry
from pflcli.options import completion


def command(
    kind: Annotated[
        str,
        typer.Argument(
            help="Write an example of a method, model, dataset, scheme, upload (step) or aggregator.",
            metavar="KIND",
            autocompletion=completion.words(*registry.KINDS),
        ),
    ],
    file: Annotated[Path, typer.Argument(help="Write it to this new file.", metavar="FILE.py")],
) -> None:
    """Write a commented example that runs, for you to change: a method, model, dataset, scheme, upload or aggregator.

    Examples:
        pfl new method my_method.py
        pfl new scheme my_scheme.py
    """
    from pflcli.commands.new import new

    path = new(kind, file)
    word = path if "/" in str(path) else f"./{path}"
    console.Console().say(f"to check it: pfl check {word}")
    console.lines([str(path)])
