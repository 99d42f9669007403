"""Compiled loops on disk: code is read only where it would be compiled to the same."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest

from pflcli.plugins.accelerated import compiler

INNER = """
from pflcli.plugins.accelerated.compiler import compiled

@compiled
def step():
    return {}
"""
OUTER = """
from pflcli.plugins.accelerated.compiler import compiled
from inner_of_test import step

@compiled
def total(x):
    return x.sum() + step()
"""
MIXED = """
import math
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from pflcli.plugins.accelerated.compiler import compiled


@compiled
def part(x, first):
    if first < 0:
        raise ValueError("no such part")
    return np.sort(x)[first:], math.exp(x[0] / x[1])


def answers(kind):
    values, number = mixed.part(np.array([2, 2, 3], kind), 1)
    assert values.tolist() == [2, 3] and values.dtype == kind and math.isclose(number, math.e, rel_tol=1e-6)
    try:
        mixed.part(values, -1)
    except ValueError as error:
        assert str(error) == "no such part"
    else:
        raise AssertionError


if __name__ == "__main__":
    import mixed

    kinds = sys.argv[2:]
    with ThreadPoolExecutor(int(sys.argv[1])) as pool:
        list(pool.map(answers, kinds))
    what_takes_time = {"numba.np.npyimpl", "scipy.linalg"} & {*sys.modules}
    print(sum(mixed.part.stats.cache_hits.values()), *what_takes_time)
"""


@pytest.fixture
def load_loop(tmp_path, monkeypatch):
    """A function that reads a compiled loop as a new process would, beside another one that adds ``step``."""
    # Python takes two files of one size for the same if they are written within a second.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(step):
        (tmp_path / "inner_of_test.py").write_text(INNER.format(step))
        (tmp_path / "outer_of_test.py").write_text(OUTER)
        compiler._digest.cache_clear()
        for name in ("inner_of_test", "outer_of_test"):
            spec = importlib.util.spec_from_file_location(name, tmp_path / f"{name}.py")
            monkeypatch.setitem(sys.modules, name, importlib.util.module_from_spec(spec))
            spec.loader.exec_module(sys.modules[name])
        return sys.modules["outer_of_test"].total

    yield load
    compiler._digest.cache_clear()


def test_cached_code_is_used_unless_a_called_function_changed(load_loop):
    for step, hits in ((1, 0), (1, 1), (2, 0)):
        function = load_loop(step)
        assert function(np.ones(3)) == 3 + step
        assert sum(function.stats.cache_hits.values()) == hits


def test_new_process_mixes_cached_and_compiled_code_in_any_order(tmp_path):
    """Types and code of all functions of NumPy are registered to compile alone."""
    (tmp_path / "mixed.py").write_text(MIXED)
    path = os.pathsep.join(filter(None, sys.path))

    def run(*arguments):
        command = [sys.executable, str(tmp_path / "mixed.py"), *arguments]
        surroundings = {**os.environ, "PYTHONPATH": path, "NUMBA_CACHE_DIR": str(tmp_path)}
        return subprocess.run(command, env=surroundings, capture_output=True, text=True, check=True).stdout.strip()

    assert run("1", "float32") == "0 numba.np.npyimpl"
    assert run("1", "float32") == "1"
    assert run("1", "float32", "float64", "float32") == "1 numba.np.npyimpl"
    assert run("1", "int64", "float64", "float32") == "2 numba.np.npyimpl"
    assert run("4", "int32", "float32", "int64", "int16", "float64", "int8") == "3 numba.np.npyimpl"
    assert run("4", "float32", "float64", "int64", "int32", "int16", "int8") == "6"


def test_code_for_each_type_has_its_own_cache_file(load_loop, tmp_path):
    """Numba's own files are numbered, and two processes that begin at once may both write the first."""
    for kind in ("float32", "int64"):
        load_loop(1)(np.ones(3, kind))
    assert len([*tmp_path.glob("__pycache__/outer_of_test.total*.nbc")]) == 2
    function = load_loop(1)
    assert [function(np.ones(3, kind)) for kind in ("float32", "int64")] == [4, 4]
    assert sum(function.stats.cache_hits.values()) == 2


@pytest.mark.parametrize("content", [b"", b"x" * 99])
def test_damaged_cache_file_is_replaced(load_loop, tmp_path, content):
    assert load_loop(1)(np.ones(3)) == 4
    (path,) = tmp_path.glob("__pycache__/outer_of_test.total*.nbc")
    before = path.read_bytes()
    path.write_bytes(content or before[:-1])
    assert load_loop(1)(np.ones(3)) == 4
    content = path.read_bytes()
    assert content[:32] == hashlib.sha256(content[32:]).digest()


def test_full_disk_only_prevents_caching(load_loop, tmp_path, monkeypatch):
    def write(path, content):
        raise OSError("no room")

    monkeypatch.setattr(compiler.Path, "write_bytes", write)
    function = load_loop(1)
    assert [function(np.ones(3, kind)) for kind in ("float32", "int64")] == [4, 4]
    assert not [*tmp_path.glob("__pycache__/*.nbc*")]


class Unreadable:
    """An object that raises an error when it is unpickled."""

    def __reduce__(self):
        return int, ("no number",)


def test_cached_code_of_other_sources_is_not_unpickled(tmp_path):
    compiler._Files(tmp_path, "total", b"old").save("key", Unreadable())
    assert compiler._Files(tmp_path, "total", b"new").load("key") is None
