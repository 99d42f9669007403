"""Compiled loops call each other where they lie: compiled once, and read from the cache with those that they call."""

from __future__ import annotations

import os
import subprocess
import sys

LOOPS = """
import sys

import numpy as np
from pflcli.engine.cpu.compiler import compiled


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


def test_a_loop_finds_what_it_calls_whether_either_is_compiled_or_read(tmp_path):
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
