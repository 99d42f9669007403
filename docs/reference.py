"""Write docs/commands.md, every command as ``pfl COMMAND --help`` prints it, and the laws of ``pfl check``.

python docs/reference.py
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
_OPENING = """# Commands

<!-- Written by docs/reference.py from the options in pflcli/options; a test compares them. -->

All commands with their options, as `pfl COMMAND --help` prints them. [guide.md](guide.md) says what to do with them,
and [README](../README.md#commands) has the exit codes. Options of at least three commands stand in the
[last section](#shared-options).
"""
_LEAST_COMMANDS = 3
"""Number of commands from which an option is described once, in the last section."""

Row = tuple[str, str]


def write_files() -> dict[Path, str]:
    """Return the text of each file."""
    laws = {DOCS / "laws" / f"{group}.csv": _write_laws(group) for group in registry.GROUPS}
    return {DOCS / "commands.md": _write_commands(), **laws}


def _write_laws(group: str) -> str:
    """Return the laws of a kind of files as CSV."""
    text = io.StringIO()
    rows = [(law.name, re.sub(r"``(.+?)``", r"`\1`", law.statement)) for law in list_laws(group)]
    csv.writer(text, lineterminator="\n").writerows([("law", "what holds"), *rows])
    return text.getvalue()


def _write_commands() -> str:
    """Return the page of commands."""
    root = typer.main.get_command(app)
    context = typer.Context(root, info_name="pfl")
    commands = dict(walk_commands(root))
    rows = {name: _list_options(command, context) for name, command in commands.items()}
    count = Counter(row for options in rows.values() for row in options)
    shared = {row for row, commands in count.items() if commands >= _LEAST_COMMANDS}
    sections = [_describe(name, commands[name], rows[name], shared) for name in rows]
    everywhere = _list_options(root, context)
    last = "\n".join(
        [
            "## Shared options\n",
            "Of `pfl` itself, before or after the name of a command:\n",
            _table(everywhere),
            "\nOf several commands:\n",
            _table(sorted(shared, key=lambda row: (row[0].lstrip("`-"), row))),
        ]
    )
    return "\n".join([_OPENING, *sections, last, ""])


def _describe(name: str, command: Any, options: list[Row], shared: set[Row]) -> str:
    """Return the section of a command: what it does, examples, its own options, and those it shares."""
    own = [row for row in options if row not in shared]
    others = [match[0] for names, _ in options if (names, _) in shared and (match := re.search(r"--[\w-]+", names))]
    text = _plain(command.help or "")
    parts = [f"## {name}\n", f"{text}\n", "```sh", *command.examples, "```\n"]
    if own:
        parts += [_table(own), ""]
    if others:
        parts.append(f"Shared: {', '.join(f'`{name}`' for name in others)}.\n")
    return "\n".join(parts)


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
    for path, text in write_files().items():
        path.write_text(text, encoding="utf-8")
