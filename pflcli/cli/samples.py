"""Options of the commands that read a user's own samples."""

from __future__ import annotations

from typing import Annotated

import typer

from pflcli.cli import completion
from pflcli.errors import UsageError

Label = Annotated[
    str | None,
    typer.Option(help="Take each sample's class from this column or array.", metavar="COL", show_default=False),
]
SplitColumn = Annotated[
    str | None,
    typer.Option(
        help="Split samples by this column or array of the words train, validation (or val) and test.",
        metavar="COL",
        show_default="drawn at random",
    ),
]
Layout = Annotated[
    str | None,
    typer.Option(
        help="Read the arrays of series and images in this order: channels-first or channels-last.",
        metavar="NAME",
        show_default="channels-last",
        autocompletion=completion.words("channels-first", "channels-last"),
    ),
]
Delimiter = Annotated[
    str | None,
    typer.Option(
        help="Split columns at this character, such as ';' or tab.",
        metavar="CHAR",
        show_default="comma, or tab for .tsv",
    ),
]


def fractions(text: str) -> tuple[float, float, float]:
    """Return the fractions in ``0.6,0.2,0.2``; raises UsageError for anything but three numbers."""
    try:
        train, validation, test = (float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--fractions {text} are not three numbers", "--fractions 0.6,0.2,0.2") from None
    return train, validation, test
