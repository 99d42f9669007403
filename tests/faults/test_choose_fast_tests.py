"""The list of fast tests has tests that exist and all that killed mutants; the choice runs every line."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

import choose_fast_tests
from choose_fast_tests import FAST

ROOT = Path(__file__).parents[2]


def read_functions(path: str) -> set[str]:
    """Return the names of the test functions of a file, as ``Class::name`` for those of a class."""
    names = set()
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return names


def test_each_fast_test_exists_and_is_listed_once():
    lines = FAST.read_text(encoding="utf-8").splitlines()
    assert len(lines) > 100
    assert sorted({*lines}) == lines
    functions = defaultdict(set)
    for line in lines:
        path, _, name = line.partition("::")
        functions[path].add(name.partition("[")[0])
    assert {
        path: names - read_functions(path) for path, names in functions.items() if names - read_functions(path)
    } == {}


def test_pytest_finds_each_fast_test_with_its_parameters():
    """A name that it does not find ends the fast tier before the first test."""
    line = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", f"@{FAST}"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, [text for text in done.stdout.splitlines() if text.startswith("ERROR")]


def test_each_test_that_killed_a_mutant_is_fast():
    killers = {*choose_fast_tests.read_killers().values()}
    assert killers
    listed = {*FAST.read_text(encoding="utf-8").splitlines()}
    # A line without brackets stands for the test with all its parameters.
    assert sorted(killer for killer in killers if not {killer, killer.partition("[")[0]} & listed) == []


def test_chosen_tests_run_every_line_that_any_test_runs():
    draw = np.random.default_rng(0)
    lines = draw.random((40, 64)) < 0.1
    lines[:, 7] = False  # no test runs it
    packed, seconds = np.packbits(lines, axis=1), draw.random(40)
    for first in ([], [3]):
        chosen = choose_fast_tests.choose(packed, seconds, first)
        assert {*first} <= {*chosen}
        assert len(chosen) < 40
        assert (lines[chosen].any(axis=0) == lines.any(axis=0)).all()


def test_the_faster_of_two_equal_tests_is_chosen():
    packed = np.asarray([[0b1100], [0b1100], [0b0011]], np.uint8)
    assert choose_fast_tests.choose(packed, np.asarray([2.0, 1.0, 9.0]), []) == [1, 2]
