"""``pfl check``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pflcli.cli import console
from pflcli.cli.from_options import Json, Quiet
from pflcli.core import config
from pflcli.core.errors import ComputationError
from pflcli.core.wording import counted
from pflcli.options import completion
from pflcli.options.declaration import split_words

_File = Annotated[
    str,
    typer.Argument(
        help="Check this Python file, or the built-in method, model, dataset, scheme, upload step or aggregator of"
        " this name.",
        metavar="FILE|NAME",
        autocompletion=completion.names_in_any_group,
    ),
]
_Options = Annotated[
    list[str] | None,
    typer.Option("--set", help="Set an option of the file; repeat it for more.", metavar="KEY=VALUE"),
]
_Only = Annotated[
    list[str] | None,
    typer.Option(help="Check only these laws; repeatable.", metavar="LAW,LAW", show_default="all"),
]
_Root = Annotated[
    Path | None,
    typer.Option(help="Read the files of a dataset from this folder.", metavar="DIR", show_default=False),
]
_Like = Annotated[
    Path | None,
    typer.Option(
        help="Check a model with samples of the shape, and the number of classes, of this partition.",
        metavar="PARTITION",
        show_default=False,
    ),
]


def command(
    file: _File,
    options: _Options = None,
    only: _Only = None,
    root: _Root = None,
    like: _Like = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check a file by the laws of its kind: one line for each law, and what was seen where it does not hold.

    The laws of methods run on seven small clients in memory, in seconds. The exit code is 5 if a law does not hold. A
    warning says that the file does something unusual; it does not change the exit code.

    Examples:
        pfl check ./my_method.py --set lam=0.5
        pfl check ditto --json
    """
    from pflcli.commands.check import check

    verdicts, first_laws = [], dict[str, str]()
    assigned = config.parse_assignments(options or [])
    for verdict in check(file, options=assigned, only=split_words(",".join(only or ())), root=root, like=like):
        verdicts.append(verdict)
        first = first_laws.setdefault(verdict.reason, verdict.law.name)
        lines = [verdict.reason] if verdict.reason else []
        if verdict.reason and first != verdict.law.name:
            lines = [f"for the same reason as {first}"]
        elif verdict.result in ("failed", "warning"):
            lines += [verdict.law.statement, verdict.law.reason]
        if not as_json and not (quiet and verdict.result != "failed"):
            console.lines([f"{verdict.result:<14}  {verdict.law.name}", *(f"{'':<16}{line}" for line in lines)])
    if as_json:
        console.data(
            [
                {
                    "law": verdict.law.name,
                    "result": verdict.result,
                    "reason": verdict.reason,
                    "statement": verdict.law.statement,
                    "seconds": round(verdict.seconds, 3),
                }
                for verdict in verdicts
            ]
        )
    broken = [verdict.law.name for verdict in verdicts if verdict.result == "failed"]
    if broken:
        raise ComputationError(f"{file} breaks {len(broken)} of {len(verdicts)} laws: {', '.join(broken)}")
    if not quiet and not as_json:
        passed = sum(verdict.result == "passed" for verdict in verdicts)
        warnings = sum(verdict.result == "warning" for verdict in verdicts)
        more = f", {counted(warnings, 'warning')}" if warnings else ""
        console.Console().say(f"{counted(passed, 'law')} passed, none failed{more}")
