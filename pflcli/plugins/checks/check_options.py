"""The options of ``pfl check``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar

import typer

from pflcli.options import completion
from pflcli.options.declaration import WORDS, OptionalArtifactPath, Options, Root, Set, Typed


@dataclass(frozen=True)
class Check(Options):
    """Check a file by the laws of its kind: one line for each law, and what was seen where it does not hold.

    The laws of methods run on seven small clients in memory, in seconds. The exit code is 5 if a law does not hold. A
    warning says that the file does something unusual; it does not change the exit code.

    Examples:
        pfl check ./my_method.py --set lam=0.5
        pfl check ditto --json
    """

    NAME: ClassVar[str] = "check"
    HAS_DRY_RUN: ClassVar[bool] = False
    HAS_FORCE: ClassVar[bool] = False

    word: Annotated[
        Any,
        Typed(str),
        typer.Argument(
            help="Check this Python file, or the built-in method, model, dataset, scheme, upload step or aggregator of"
            " this name.",
            metavar="FILE|NAME",
            autocompletion=completion.names_in_any_group,
        ),
    ]
    _: KW_ONLY
    options: Set = None
    only: Annotated[
        str | Sequence[str] | None,
        WORDS,
        typer.Option(help="Check only these laws.", metavar="LAW,LAW", show_default="all"),
    ] = None
    root: Root = None
    like: Annotated[
        OptionalArtifactPath,
        typer.Option(
            help="Check a model with samples of the shape, and the number of classes, of this partition.",
            metavar="PARTITION",
            show_default=False,
        ),
    ] = None
