"""``pfl show``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pflcli.cli import console
from pflcli.cli.from_options import Json
from pflcli.core.errors import UsageError
from pflcli.core.wording import counted
from pflcli.options import completion
from pflcli.options.declaration import parse_integers

if TYPE_CHECKING:
    from pflcli.artifacts.reader import Artifact
    from pflcli.commands.show import Lineage


_Path = Annotated[Path, typer.Argument(help="Show this artifact.", autocompletion=completion.artifacts())]
_Lineage = Annotated[bool, typer.Option("--lineage", help="Print a tree of all artifacts that it was made from.")]
_Verify = Annotated[
    bool,
    typer.Option(
        "--verify",
        help="Check every file against its hash, and its contents; say where this machine differs from the one that"
        " made it.",
    ),
]
_Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        help="Draw the artifact: classes of each client, attention, neighbours or history of a method, or the"
        " figure of an evaluation, comparison, sweep or audit. The suffix gives the format: .png, .svg or .pdf.",
        metavar="FILE.png",
        show_default=False,
    ),
]
_Attention = Annotated[
    Path | None,
    typer.Option(
        "--attention",
        help="Write the attention weights in predictions to this file: round, client, layer, target, weight.",
        metavar="FILE.csv",
        show_default=False,
    ),
]
_PlotRounds = Annotated[
    str,
    typer.Option(
        "--plot-rounds",
        help="Use the attention of these rounds, instead of the last one (--plot) or all (--attention).",
        metavar="N,N",
        show_default=False,
    ),
]
_Latex = Annotated[
    bool,
    typer.Option(
        "--latex",
        help="Print the table of an evaluation or a comparison for a paper, in LaTeX with booktabs. Methods have"
        " the names of their papers; the best one is bold, and a dagger marks those not shown to be worse.",
    ),
]
_Details = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Print all details, such as hashes and options, and tracebacks of bugs."),
]


def command(
    path: _Path,
    lineage: _Lineage = False,
    verify: _Verify = False,
    picture: _Plot = None,
    attention: _Attention = None,
    rounds: _PlotRounds = "",
    as_latex: _Latex = False,
    as_json: Json = False,
    verbose: _Details = False,
) -> None:
    """Describe an artifact in a few lines or by its table: its kind, its size, and what it was made from.

    Examples:
        pfl show runs/knn-per --lineage --verify
        pfl show runs/c/comparison --plot accuracy.pdf
    """
    from pflcli.commands import show

    chosen = parse_integers(rounds, "--plot-rounds")
    if chosen and picture is None and attention is None:
        raise UsageError("--plot-rounds needs --plot or --attention", "--plot FILE.png")
    if as_latex and (as_json or lineage or verify):
        other = "--json" if as_json else "--lineage" if lineage else "--verify"
        raise UsageError(f"--latex and {other} exclude each other", f"leave out {other}")
    in_words = lineage and not as_json
    # Read what is printed before a file is written.
    text = _draw_tree(show.trace(path, verify=verify), verified=verify) if in_words else []
    facts = show.show(path, lineage=lineage, verify=verify) if (as_json or verbose) and not in_words else {}
    if picture is not None:
        show.plot(path, picture, chosen)
    if attention is not None:
        show.attention(path, attention, chosen)
    drawn = [str(file) for file in (picture, attention) if file is not None]
    if as_latex:
        _print_latex(path)
    elif as_json:
        console.data(facts)
    elif in_words:
        console.lines(text)
    elif drawn and not verify and not verbose:
        console.lines(drawn)
    elif verbose:
        console.facts(facts)
    elif verify or not _print_table(path):
        console.facts(show.outline(path, verify=verify))
        console.lines(show.list_columns(path))


def _print_latex(path: Path) -> None:
    from pflcli.artifacts.open_by_path import open_one
    from pflcli.evaluation import latex
    from pflcli.evaluation.presentation import tables

    console.lines([latex.render(open_one(path, *tables.KINDS)).rstrip("\n")])


def _print_table(path: Path) -> bool:
    """Print the table of an artifact; return whether artifacts of its kind have one."""
    from pflcli.artifacts.open_by_path import open_one

    return console.artifact(open_one(path), to_stderr=False)


def _draw_tree(root: Lineage, *, verified: bool) -> list[str]:
    """Return a line for each artifact (path, kind, facts, seconds), its inputs below it, and a line of totals.

    An artifact from which several others were made is described once; later lines refer to it.
    """
    from rich.cells import cell_len

    from pflcli.commands import show

    described: dict[int, Artifact] = {}
    rows: list[tuple[str, str]] = []

    def grow(lineage: Lineage, branch: str, below: str) -> None:
        path = str(lineage.artifact.path).replace("\n", "\\n")
        if id(lineage) in described:
            rows.append((branch + path, "see above"))
            return
        described[id(lineage)] = lineage.artifact
        rows.append((branch + path, _describe(lineage.artifact)))
        for item in lineage.inputs:
            last = item is lineage.inputs[-1]
            grow(item, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  "))

    grow(root, "", "")
    width = max(cell_len(name) for name, _ in rows)
    files = sum(len(artifact.manifest.files) for artifact in described.values())
    total = f"{counted(len(described), 'artifact')}, {counted(files, 'file')}{' verified' if verified else ''}"
    tree = [name + " " * (width - cell_len(name) + 2) + facts for name, facts in rows]
    return [*tree, total, *([f"this machine {show.compare_machines(described.values())}"] if verified else [])]


def _describe(artifact: Artifact) -> str:
    from pflcli.artifacts import kinds

    seconds = artifact.manifest.made.get("seconds")
    facts = [*kinds.load(artifact.kind).describe(artifact.manifest), "" if seconds is None else f"{seconds:.1f} s"]
    text = f"{artifact.kind}: {', '.join(filter(None, facts))}"
    return text.replace("\n", "\\n")
