"""The mutation script notices what it should: a mutant that a test kills, and one that no chosen test can."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import code_mutants

FOLDER = Path(code_mutants.__file__).parent
TEST = "tests/evaluation/metrics/test_metrics.py::test_calibration_error_matches_hand_computed_values"

RUN = """
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import code_mutants

path = code_mutants.ROOT / (sys.argv[5:] or ["pflcli/core/scores.py"])[0]
mutants = [mutant for mutant in code_mutants.mutants_of(path) if mutant.change in sys.argv[2].split(" | ")]
tests = code_mutants.TestMap(Path(sys.argv[3]))
tests.tests = {sys.argv[4]: {"seconds": 0.1, "passed": True, "fixtures": []}}
tests.choose = lambda mutant, seconds: [*tests.tests]
code_mutants.run(tests, mutants, Path(sys.argv[3]) / "results.jsonl", seconds=1, again=False)
"""


def test_equivalent_mutants_name_existing_files():
    listed = tomllib.loads(code_mutants.EQUIVALENT.read_text(encoding="utf-8"))["mutant"]
    paths = {mutant["key"].partition(":")[0] for mutant in listed}
    assert sorted(path for path in paths if not (code_mutants.ROOT / path).exists()) == []


def test_draw_gives_the_same_mutants_for_the_same_seed():
    mutants = code_mutants.draw(40, 0, ["evaluation/metrics"])
    assert mutants == code_mutants.draw(40, 0, ["evaluation/metrics"])
    assert len({(mutant.path, mutant.start, mutant.end) for mutant in mutants}) == 40
    for mutant in mutants:
        before = ast.parse((code_mutants.ROOT / mutant.path).read_text(encoding="utf-8"))
        after = ast.parse(code_mutants.mutated_source(mutant))
        assert ast.dump(after) != ast.dump(before)
        docstrings = [ast.get_docstring(tree) for tree in (before, after)]
        assert docstrings[0] == docstrings[1]


def test_mutant_is_killed_only_by_a_failing_test(tmp_path):
    changes = {
        "bins - 1 => (bins + 1)": "killed",
        "math.ceil(len(known) / 10) => (math.floor(len(known) / 10))": "survived",
    }
    line = [sys.executable, "-c", RUN, FOLDER, " | ".join(changes), tmp_path, TEST]
    subprocess.run([*map(str, line)], check=True, cwd=code_mutants.ROOT, capture_output=True)
    results = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert len(results) == len(changes)
    for facts in results:
        (outcome,) = (outcome for change, outcome in changes.items() if facts["key"].endswith(change))
        assert facts["outcome"] == outcome
        assert ("test_calibration_error_matches_hand_computed_values" in facts["by"]) == (outcome == "killed")


@pytest.mark.long
def test_mutant_is_doubtful_when_its_test_also_fails_without_it(tmp_path):
    (tmp_path / "test_nothing.py").write_text("def test_that_always_fails():\n    assert not 1\n")
    line = [sys.executable, "-c", RUN, FOLDER, "bins - 1 => (bins + 1)", tmp_path, tmp_path / "test_nothing.py"]
    subprocess.run([*map(str, line)], check=True, cwd=code_mutants.ROOT, capture_output=True)
    outcomes = [json.loads(line)["outcome"] for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert outcomes == ["killed", "doubtful"]
    report = [sys.executable, FOLDER / "code_mutants.py", "report", tmp_path / "results.jsonl"]
    printed = subprocess.run([*map(str, report)], capture_output=True, text=True, check=False)
    assert printed.returncode == 1
    assert "0 of 1 killed" in printed.stdout


@pytest.mark.compiled
@pytest.mark.long
def test_compiled_functions_of_tests_are_recompiled_for_a_mutant(tmp_path):
    """They contain code of pflcli, which may be mutated."""
    test = "tests/plugins/accelerated/test_elementary.py::test_exponentials_and_logarithms_are_accurate_to_seven_digits"
    first = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    subprocess.run(first, check=True, cwd=code_mutants.ROOT, capture_output=True)  # its compiled code is stored
    change = "((_E7 * r + _E6) * r + _E5) * r => (((_E7 * r + _E6) * r + _E5) / r)"
    line = [sys.executable, "-c", RUN, FOLDER, change, tmp_path, test, "pflcli/plugins/accelerated/elementary.py"]
    subprocess.run([*map(str, line)], check=True, cwd=code_mutants.ROOT, capture_output=True)
    assert json.loads((tmp_path / "results.jsonl").read_text())["outcome"] == "killed"


def test_recompiled_names_the_functions_that_contain_mutated_code():
    """A function within loops is part of them; one that loops call where it lies is not."""
    for mutant in code_mutants.draw(60, 0, ["core/engine", "methods"]):
        own, names = code_mutants.definition_of(mutant), code_mutants.recompiled(mutant)
        callers = {d.name for d in code_mutants.definitions() if own and own.name in d.mentions} & names
        if names and own.is_compiled:
            assert names == {own.name}
        elif names:
            assert own.name in names
            assert callers or len(names) == 1
    (first, *_) = code_mutants.mutants_of(code_mutants.ROOT / "pflcli/core/scores.py")
    assert code_mutants.recompiled(first) == set()
