"""The options of ``pfl new``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import typer

from pflcli.core import registry
from pflcli.options import completion
from pflcli.options.declaration import FilePath, Options


@dataclass(frozen=True)
class New(Options):
    """Write a commented example that runs, for you to change: a method, model, dataset, scheme, task or the like.

    Examples:
        pfl new method my_method.py
        pfl new scheme my_scheme.py
    """

    NAME: ClassVar[str] = "new"
    HAS_DRY_RUN: ClassVar[bool] = False
    HAS_FORCE: ClassVar[bool] = False

    kind: Annotated[
        str,
        typer.Argument(
            help="Write an example of a method, model, dataset, scheme, upload (step), aggregator or task.",
            metavar="KIND",
            autocompletion=completion.words(*registry.KINDS),
        ),
    ]
    file: Annotated[FilePath, typer.Argument(help="Write it to this new file.", metavar="FILE.py")]
