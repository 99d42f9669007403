"""``pfl check`` refuses each wrong file in ``plugins/wrong``, and passes each right file in ``plugins/right``.

A wrong file is wrong in one believable way; the line ``Breaks: LAW, LAW`` of its docstring names the laws that must
fail, and ``Warns: LAW`` those that must warn. A line ``Options: KEY=VALUE`` sets options. All files of a kind have the
prefix of their kind.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from unittest import mock

import pytest

from pflcli import config
from pflcli.commands.check import check

PLUGINS = Path(__file__).parent / "plugins"
WRONG = sorted((PLUGINS / "wrong").glob("*.py"))
RIGHT = sorted((PLUGINS / "right").glob("*.py"))


def read_line(file: Path, name: str) -> list[str]:
    """Return the words after ``NAME:`` in the docstring of a file, separated by commas."""
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    found = re.search(rf"^{name}: (.+)$", docstring, re.MULTILINE)
    return [] if found is None else [word.strip() for word in found[1].split(",")]


def judge(file: Path, only: list[str]) -> dict[str, dict[str, str]]:
    """Return the reasons of the laws that a file breaks, and of those that warn, by name."""
    options = config.parse_assignments(read_line(file, "Options"))
    verdicts = [*check(str(file), options=options, only=only)]
    return {
        result: {verdict.law.name: verdict.reason for verdict in verdicts if verdict.result == result}
        for result in ("failed", "warning")
    }


@pytest.mark.parametrize("file", WRONG, ids=lambda file: file.stem)
def test_wrong_plugin_fails_exactly_the_laws_that_its_docstring_names(file):
    broken, doubtful = read_line(file, "Breaks"), read_line(file, "Warns")
    assert broken + doubtful, "the docstring has no line 'Breaks: LAW' or 'Warns: LAW'"
    judged = judge(file, only=[*broken, *doubtful])
    assert (judged["failed"].keys(), judged["warning"].keys()) == (set(broken), set(doubtful))


@pytest.mark.parametrize("file", RIGHT, ids=lambda file: file.stem)
def test_right_plugin_passes_every_law(file):
    assert judge(file, only=[]) == {"failed": {}, "warning": {name: mock.ANY for name in read_line(file, "Warns")}}
