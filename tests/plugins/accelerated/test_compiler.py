"""Compiled loops call each other where they lie: compiled once, and read from the cache with those that they call."""

from __future__ import annotations

import ast
import gc
import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
from numba.core import event

import pflcli
from pflcli.plugins.accelerated import compiler

LOOPS = """
import sys

import numpy as np
from pflcli.plugins.accelerated.compiler import compiled


@compiled
def inner(x, row, times):
    for i in range(x.shape[1]):
        x[row, i] += times


@compiled
def outer(x):
    for row in range(len(x)):
        inner(x, row, 1)
        inner(x, row, 2)


if __name__ == "__main__":
    import loops

    x = np.zeros((2, 3))
    loops.outer(x)
    assert "scipy.linalg" not in sys.modules  # which takes time to import
    print(x.tolist(), len(loops.inner.signatures), sum(loops.outer.stats.cache_hits.values()), sep="|")
"""


def test_compiled_loop_calls_others_whether_cached_or_compiled(tmp_path):
    (tmp_path / "loops.py").write_text(LOOPS)
    cache = tmp_path / "cache"
    surroundings = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def run() -> list[str]:
        command = [sys.executable, str(tmp_path / "loops.py")]
        result = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=True)
        values, forms, hits = result.stdout.strip().split("|")
        assert values == "[[3.0, 3.0, 3.0], [3.0, 3.0, 3.0]]"
        return [forms, hits]

    def forget(name: str) -> None:
        for path in cache.rglob(f"loops.{name}*"):
            path.unlink()

    assert run() == ["1", "0"]  # one form, though it was called with two constants
    assert run()[1] == "1"
    forget("inner")
    assert run()[1] == "1"
    forget("outer")
    assert run() == ["1", "0"]


SLOW = {"all", "any", "astype", "copy", "flatnonzero", "full", "max", "min", "ones", "sum"}


def find_array_statements(function):
    """Return the lines of a function that work on whole arrays."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Constant):
            parts = [part for target in node.targets for part in ast.walk(target)]
            if any(isinstance(part, ast.Slice) for part in parts):
                yield node.lineno
        elif (isinstance(node, ast.Attribute) and node.attr in SLOW) or isinstance(node, ast.ListComp):
            yield node.lineno


def test_compiled_functions_contain_no_whole_array_statements():
    """Each of NumPy's functions is compiled for each type; a copy into a slice, with its errors, takes two seconds."""
    lines, count = [], 0
    for path in Path(pflcli.__file__).parent.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and "compiled" in map(ast.unparse, function.decorator_list):
                count += 1
                lines += [f"{path.name}:{line}" for line in find_array_statements(function)]
    assert count > 50
    assert lines == []


def test_garbage_collection_of_old_objects_is_off_during_compilation(monkeypatch, tmp_path):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    thresholds, before = [], gc.get_threshold()

    class Thresholds(event.Listener):
        def on_start(self, _):
            thresholds.append(gc.get_threshold()[2])

        def on_end(self, _):
            pass

    @compiler.compiled
    def double(x):
        for i in range(len(x)):
            x[i] *= 2

    with event.install_listener("numba:compile", Thresholds()):
        double(np.ones(3))
    assert thresholds
    assert min(thresholds) > 10**6
    assert gc.get_threshold() == before
