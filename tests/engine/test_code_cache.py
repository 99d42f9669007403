"""Compiled loops on disk: code is read only where it would be compiled to the same."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import numba
import numpy as np
import pytest

from pflcli.engine.cpu import code_cache, compiler, products

INNER = """
from pflcli.engine.cpu.compiler import compiled

@compiled
def step():
    return {}
"""
OUTER = """
from pflcli.engine.cpu.compiler import compiled
from inner_of_test import step

@compiled
def total(x):
    return x.sum() + step()
"""


@pytest.fixture
def total(tmp_path, monkeypatch):
    """A function that reads a compiled loop as a new process would, beside another one that adds ``step``."""
    # Python takes two files of one size for the same if they are written within a second.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(step):
        (tmp_path / "inner_of_test.py").write_text(INNER.format(step))
        (tmp_path / "outer_of_test.py").write_text(OUTER)
        code_cache._digest.cache_clear()
        for name in ("inner_of_test", "outer_of_test"):
            spec = importlib.util.spec_from_file_location(name, tmp_path / f"{name}.py")
            monkeypatch.setitem(sys.modules, name, importlib.util.module_from_spec(spec))
            spec.loader.exec_module(sys.modules[name])
        return sys.modules["outer_of_test"].total

    yield load
    code_cache._digest.cache_clear()


def test_code_is_read_unless_a_function_in_another_file_changed(total):
    for step, hits in ((1, 0), (1, 1), (2, 0)):
        function = total(step)
        assert function(np.ones(3)) == 3 + step
        assert sum(function.stats.cache_hits.values()) == hits


def test_code_for_other_types_is_in_another_file(total, tmp_path):
    """Numba's own files are numbered, and two processes that begin at once may both write the first."""
    for kind in ("float32", "int64"):
        total(1)(np.ones(3, kind))
    assert len([*tmp_path.glob("__pycache__/outer_of_test.total*.nbc")]) == 2
    function = total(1)
    assert [function(np.ones(3, kind)) for kind in ("float32", "int64")] == [4, 4]
    assert sum(function.stats.cache_hits.values()) == 2


@pytest.mark.parametrize("content", [b"", b"x" * 99])
def test_damaged_code_is_compiled_again(total, tmp_path, content):
    assert total(1)(np.ones(3)) == 4
    (path,) = tmp_path.glob("__pycache__/outer_of_test.total*.nbc")
    before = path.read_bytes()
    path.write_bytes(content or before[:-1])
    assert total(1)(np.ones(3)) == 4
    assert len(path.read_bytes()) == len(before)


def test_a_full_disk_takes_time_alone(total, tmp_path, monkeypatch):
    def write(path, content):
        raise OSError("no room")

    monkeypatch.setattr(code_cache.Path, "write_bytes", write)
    function = total(1)
    assert [function(np.ones(3, kind)) for kind in ("float32", "int64")] == [4, 4]
    assert not [*tmp_path.glob("__pycache__/*.nbc*")]


def test_loops_are_compiled_whatever_numba_is_told(monkeypatch):
    """Vector instructions exist in compiled code alone, and NUMBA_DISABLE_JIT may be set for another program."""
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    importlib.reload(compiler)
    x, out = np.arange(6.0), np.empty(6)
    compiler.compiled(products.transpose.py_func)(x, 0, 3, out, 0, 2, 2, 3)
    assert out.tolist() == [0, 3, 1, 4, 2, 5]
