"""Write what pages say of the code itself: commands, methods and laws.

    python docs/reference.py

docs/commands has a page per command. What stands there between ``<!-- options of NAME -->`` and ``<!-- end -->`` is
what ``pfl NAME --help`` prints; the rest is written by hand. A command without a page gets one. docs/commands.md has a
table of all commands and the options that several share, docs/all-methods.md a table of all methods, docs/laws the laws
of ``pfl check``, and docs/methods what docs/cards.py writes: a card per method, and what files of methods call.
docs/atlas.py writes docs/atlas.md, and docs/evidence.py the evidence in docs/choosing.md and README.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from pathlib import Path
from typing import Any

import typer.main
from rich.markup import render

from pflcli.cli import app
from pflcli.cli.from_options import walk_commands
from pflcli.core import registry
from pflcli.plugins.checks.laws import list_laws

DOCS = Path(__file__).parent
_LEAST_COMMANDS = 3
"""Number of commands from which an option is described once, in the last section."""

Row = tuple[str, str]


def write_files() -> dict[Path, str]:
    """Return the text of each file."""
    laws = {DOCS / "laws" / f"{group}.csv": _write_laws(group) for group in registry.GROUPS}
    methods = DOCS / "all-methods.md"
    return {**_write_commands(), methods: _fill(methods, "methods", _list_methods()), **laws}


def _fill(page: Path, name: str, text: str) -> str:
    """Return a page, or a new one of a command, with a text between the comments ``name`` and ``end``."""
    title = f"# pfl {name.removeprefix('options of ')}"
    written = page.read_text(encoding="utf-8") if page.exists() else f"{title}\n\n<!-- {name} -->\n<!-- end -->\n"
    before, mark, rest = written.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not mark or not end:
        raise ValueError(f"{page.name} has no comments '{name}' and 'end'")
    return f"{before}{mark}{text}\n{end}{after}"


def _write_laws(group: str) -> str:
    """Return the laws of a kind of files as CSV."""
    text = io.StringIO()
    rows = [(law.name, re.sub(r"``(.+?)``", r"`\1`", law.statement)) for law in list_laws(group)]
    csv.writer(text, lineterminator="\n").writerows([("law", "what holds"), *rows])
    return text.getvalue()


def _write_commands() -> dict[Path, str]:
    """Return the pages of commands."""
    root = typer.main.get_command(app)
    context = typer.Context(root, info_name="pfl")
    commands = dict(walk_commands(root))
    rows = {name: _list_options(command, context) for name, command in commands.items()}
    count = Counter(row for options in rows.values() for row in options)
    shared = {row for row, commands in count.items() if commands >= _LEAST_COMMANDS}
    pages = {name: DOCS / "commands" / f"{name.replace(' ', '-')}.md" for name in commands}
    texts = {
        page: _fill(page, f"options of {name}", _describe(commands[name], rows[name], shared))
        for name, page in pages.items()
    }
    table = ["| command | what it does |", "|---|---|"]
    panel = None
    for name, command in commands.items():
        heading = root.commands[name.split()[0]].rich_help_panel  # type: ignore[attr-defined]
        if heading != panel:
            table.append(f"| **{heading}** | |")
            panel = heading
        summary = re.split(r"(?<=\.)\s", _plain(command.help or ""))[0]
        table.append(f"| [`pfl {name}`](commands/{pages[name].name}) | {summary} |")
    index = DOCS / "commands.md"
    text = _fill(index, "commands", "\n".join(table))
    everywhere = _table(_list_options(root, context))
    several = _table(sorted(shared, key=lambda row: (row[0].lstrip("`-"), row)))
    options = (
        f"Of `pfl` itself, before or after the name of a command:\n\n{everywhere}\n\nOf several commands:\n\n{several}"
    )
    before, mark, _ = text.partition("<!-- shared options -->\n")
    return {index: f"{before}{mark}{options}\n<!-- end -->\n", **texts}


def _list_methods() -> str:
    """Return the table of methods, by the docstrings and constants of their files."""
    lines = ["| method | what it does | paper | kind | needs |", "|---|---|---|---|---|"]
    for name in registry.names("methods"):
        card = registry.card("methods", name)
        link = re.search(r"https://\S+?(?=[.,:;)]*(\s|$))", card.doc)
        paper = f"{card.facts['PAPER']}, {card.facts['YEAR']}"
        paper = "a reference" if "REFERENCE" in card.facts else f"[{paper}]({link[0]})" if link else paper
        summary = re.sub(r"^[^:]*: ", "", card.summary)
        needs = ", ".join(card.facts["NEEDS"]) or "partition"
        link = f"[`{name}`](methods/{name}.md)"
        lines.append(f"| {link} | {summary[0].upper()}{summary[1:]} | {paper} | {card.facts['KIND']} | {needs} |")
    return "\n".join(lines)


def _describe(command: Any, options: list[Row], shared: set[Row]) -> str:
    """Return what the help of a command says: what it does, examples, its own options, and those it shares."""
    own = [row for row in options if row not in shared]
    others = [match[0] for names, _ in options if (names, _) in shared and (match := re.search(r"--[\w-]+", names))]
    parts = [_plain(command.help or ""), "\n".join(["```sh", *command.examples, "```"])]
    if own:
        parts.append(_table(own))
    if others:
        leading = ", ".join(f"`{name}`" for name in others)
        parts.append(f"[Shared](../commands.md#shared-options): {leading}.")
    return "\n\n".join(parts)


def _list_options(command: Any, root: Any) -> list[Row]:
    """Return the name and the help of each argument and option of a command."""
    context = typer.Context(command, info_name=command.name, parent=root)
    rows = []
    for param in command.params:
        names, text = param.get_help_record(context)
        if param.show_default is True and param.default not in (None, False, "", 0) and "[default" not in text:
            text += f" \\[default: {param.default}]"
        rows.append((f"`{names}`", _plain(text)))
    return rows


def _table(rows: list[Row]) -> str:
    lines = [f"| {names.replace('|', chr(92) + '|')} | {text.replace('|', chr(92) + '|')} |" for names, text in rows]
    return "\n".join(["| option | effect |", "|---|---|", *lines])


def _plain(text: str) -> str:
    """Return a help text without marks of rich, in one line."""
    return " ".join(render(text).plain.split())


if __name__ == "__main__":
    (DOCS / "commands").mkdir(exist_ok=True)
    import atlas
    import cards
    import evidence

    # Cards and evidence read the table that the atlas writes.
    for write in (write_files, atlas.write_files, cards.write_files, evidence.write_files):
        for path, text in write().items():
            path.write_text(text, encoding="utf-8")
