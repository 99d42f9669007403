"""A name says what its value is: ``accuracy`` or ``artifact``, not ``found`` or ``made``."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORDS = """
found held heard made told mine standing entered some whole asked given taken wanted said put got gone ours theirs
what which who whose fresh had way named shown seen sent done kept everything everyone nobody answered here there it
them thing
"""
NOT_YET = """
pflcli/evaluation/page tests/page
"""
"""Folders and files that may still have such names: this list only becomes shorter."""
ON_DISK = {("pflcli/artifacts/manifest.py", "made")}
"""Fields whose names are keys of a file."""


def names(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg | ast.alias):
            yield node.lineno, getattr(node, "arg", None) or getattr(node, "asname", None) or ""


@pytest.mark.parametrize("folder", ["pflcli", "tests", "benchmarks", "examples"])
def test_names_say_what_a_value_is(folder):
    paths = [path.relative_to(ROOT) for path in sorted((ROOT / folder).rglob("*.py"))]
    paths = [path for path in paths if not {*NOT_YET.split()} & {str(path), *map(str, path.parents)}]
    assert [f"{path}:{line}: {name}" for path in paths for line, name in names(ROOT / path)
            if name.strip("_").lower() in WORDS.split() and (str(path), name) not in ON_DISK] == []  # fmt: skip
