"""``pfl report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pflcli.cli import console
from pflcli.cli.from_options import Json, Quiet, Verbose
from pflcli.options import completion


def command(
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="Report these comparisons, evaluations, federations, audits and verdicts; at least one of the first"
            " three.",
            metavar="COMPARISON...",
            autocompletion=completion.artifacts("comparison", "evaluation", "federation", "audit", "verdicts"),
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="Write the page to this file; its numbers go to NAME_data/ beside it.",
            metavar="FILE.html",
        ),
    ],
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Replace a file at --out that pfl report did not write.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Write one page that explains a comparison: the answer, a sortable table, linked charts, and how to repeat it.

    The page is self-contained and can be sent by mail.

    Examples:
        pfl report runs/c/comparison -o report.html
        pfl report runs/evaluation runs/c/comparison -o both.html
    """
    from pflcli.commands.report import report

    reporter = console.Console(quiet=quiet, verbose=verbose)
    page = report(sources, out, force=force, reporter=reporter)
    for answer in page.answers:
        reporter.say(answer)
    if as_json:
        console.data({"path": str(page.path), "data": str(page.data), "answers": page.answers})
    else:
        console.lines([str(page.path)])
