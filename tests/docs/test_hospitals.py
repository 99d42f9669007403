"""``examples/hospitals.sh``: its statistics by hand, and FLamby's published answers against those of pfl."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hospitals_script(monkeypatch):
    spec = importlib.util.spec_from_file_location("hospitals", ROOT / "examples" / "hospitals.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "hospitals", module)
    spec.loader.exec_module(module)
    return module


def test_published_predictions_have_the_published_means(hospitals_script):
    means = {
        name: np.mean(np.asarray(seeds).T / hospitals_script.TEST) for name, seeds in hospitals_script.PUBLISHED.items()
    }
    assert means == pytest.approx({"fedavg": 0.6850, "local": 0.7299, "fedavg@yogi": 0.7314}, abs=5e-5)


def test_interval_matches_a_hand_computed_one(hospitals_script):
    """Mean 1, variance 2; times 1/2 + 1/2 it is that of one split alone. The quantile of t, one degree, is 12.706."""
    low, high = hospitals_script.interval(np.asarray([0.0, 2.0]), 0.5)
    assert (low, high) == pytest.approx((1 - 12.7062 * math.sqrt(2), 1 + 12.7062 * math.sqrt(2)), abs=1e-3)
    many = [hospitals_script.interval(np.tile([0.0, 2.0], n), 0.5) for n in (5, 500)]
    assert many[1][1] - 1 == pytest.approx(1.96 * math.sqrt(0.5), rel=0.01)  # more splits leave the doubt of one
    assert many[1][1] < many[0][1]


def test_within_compares_hospitals_with_the_published_range(hospitals_script):
    right = np.asarray([[72.0, 68.0, 12.9, 25.1], [72.0, 68.2, 13.0, 24.9]])
    assert hospitals_script.within("fedavg", {"fedavg": right / hospitals_script.TEST}) == [True, False, True, True]


def test_repeated_splits_print_the_tables(hospitals_script, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(hospitals_script.SETTINGS, "rounds", 1)
    monkeypatch.setitem(hospitals_script.SETTINGS, "steps", 3)
    monkeypatch.setitem(hospitals_script.OPTIONS["fedavg-plus"], "steps", 3)
    hospitals_script.repeated(tmp_path, 2)
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("| `fedavg-plus` |") for line in lines) == 3
    assert sum(": gain |" in line for line in lines) == 6
    table = hospitals_script.accuracies(tmp_path / "standardize-client" / "c")
    assert table["fedavg"].shape == (2, 4)
    right = table["fedavg"] * hospitals_script.TEST
    np.testing.assert_allclose(right, right.round(), atol=1e-3)


@pytest.mark.long
def test_accuracies_lie_in_the_published_range(hospitals_script, tmp_path):
    """Every hospital's mean over five seeds lies in the range of the published seeds, give or take one patient."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, command in {"pfl": f"{sys.executable} -m pflcli", "python": sys.executable}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (programs / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    script = ["bash", str(ROOT / "examples" / "hospitals.sh"), str(tmp_path / "runs"), "2"]
    subprocess.run(script, env=env, check=True, capture_output=True)
    table = hospitals_script.accuracies(tmp_path / "runs" / "published")
    assert {method: hospitals_script.within(method, table) for method in hospitals_script.PUBLISHED} == dict.fromkeys(
        hospitals_script.PUBLISHED, [True] * 4
    )
    tuned = hospitals_script.accuracies(tmp_path / "runs" / "fine-tuning")
    means = {method: tuned[method].mean(axis=1) for method in hospitals_script.FINE_TUNING}
    assert (means["fedavg-plus"] >= means["fedavg"]).all()
    for method, published in hospitals_script.FINE_TUNING.items():
        assert means[method].mean() == pytest.approx(published, abs=0.02)
