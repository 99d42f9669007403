"""Every package that only some commands need is reported in the same way when it is missing."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

from helpers import ROOT


def find_errors():
    """Return the text of each ``raise`` in the package whose message says that something is not installed."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and node.exc is not None:
                text = ast.unparse(node.exc)
                if re.search(r"not installed|pip install 'pflcli\[", text) and "NotApplicable" not in text:
                    yield path.relative_to(ROOT), text


def test_errors_of_missing_packages_have_the_same_exit_code_and_form():
    project = tomllib.loads((Path(ROOT).parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = [*find_errors()]
    assert len(found) > 5
    for path, text in found:
        assert text.startswith("UsageError("), f"{path}: another exit code: {text}"
        assert "not installed" in text, f"{path}: {text}"
        extra = re.search(r"pip install 'pflcli\[([^\]]+)\]'", text.replace("\\'", "'"))
        assert extra, f"{path} does not say what to install: {text}"
        assert extra[1] in project["optional-dependencies"] or extra[1].startswith("{"), f"{path}: {extra[1]}"
