"""What tests of several packages share: making small artifacts, comparing folders, reading imports."""

from __future__ import annotations

import ast
import csv
import os
from pathlib import Path

import pflcli
from pflcli.artifacts.make import Execution
from pflcli.artifacts.manifest import ArtifactSpec
from pflcli.artifacts.reader import open_artifact

FORCE = Execution(force=True)


def spec(kind="partition", inputs=(), code=None, **request):
    return ArtifactSpec(kind, {"alpha": 0.3, **request}, tuple(inputs), code or {})


def build(work):
    work.write("a.txt", b"content")
    return {"n": 1}, {"device": "cpu"}


def error_text(error):
    """An error as a person reads it."""
    return "\n".join([error.value.message, *error.value.fix])


def kill(work):
    """Leave the work as a killed process does: the lock goes, the folder stays."""
    os.close(work._lock)


def listing(folder):
    return sorted(path.name for path in folder.iterdir())


def rows(folder):
    """``rounds.csv`` without the seconds, which nobody can repeat."""
    with (folder / "rounds.csv").open(newline="") as file:
        return [{**row, "seconds": ""} for row in csv.DictReader(file)]


def same(actual, expected):
    for name in open_artifact(expected).manifest.files:
        if name == "rounds.csv":
            assert rows(actual) == rows(expected)
        else:
            assert (actual / name).read_bytes() == (expected / name).read_bytes(), name
    one, two = (open_artifact(path).manifest for path in (actual, expected))
    assert [*one.files] == [*two.files]
    assert (one.fingerprint, one.summary) == (two.fingerprint, two.summary)
    assert not actual.with_name(actual.name + ".partial").exists()


def unmeasured(state):
    """A state without what its method measured on the way, from which nothing follows."""
    return {name: value for name, value in state.items() if name != "history"}


ROOT = Path(pflcli.__file__).parent


def imports(node):
    for item in ast.walk(node):
        if isinstance(item, ast.Import):
            yield from (alias.name for alias in item.names)
        elif isinstance(item, ast.ImportFrom):
            assert item.level == 0, "imports are absolute"
            yield item.module
            if item.module == "pflcli":
                yield from (f"pflcli.{alias.name}" for alias in item.names)
