"""A task in a user's file goes from ``pfl new task`` to the page, and no command knows it unless the file is named."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from pflcli import Federation, new, simulate, table
from pflcli.core.errors import InputError, UsageError

SETTINGS = "--model mlp --rounds 4 --participation 1 --batch-size 16 --lr 0.1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a table of grades, whose clients depend on features in two ways."""
    folder = tmp_path_factory.mktemp("task")
    draw = np.random.default_rng(0)
    client, x = np.repeat(np.arange(6), 40), draw.normal(size=(240, 3))
    grade = np.digitize(x[:, 0] + (2 * (client % 2) - 1) * 2 * x[:, 1], [-2, -1, 1, 2])
    frame = pd.DataFrame(x.round(4), columns=list("abc")).assign(school=client, grade=grade)
    frame.to_csv(folder / "marks.csv", index=False)
    return folder


def call(folder, line):
    """Run a command in a process of its own, as each command of a user."""
    surroundings = {**os.environ, "PFL_ACCELERATED": "0", "COLUMNS": "200"}
    words = [sys.executable, "-m", "pflcli", *line.split()]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, env=surroundings)


def pfl(folder, line):
    done = call(folder, line)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_task_of_a_user_goes_from_new_to_the_page(folder):
    pfl(folder, "new task grades.py")
    assert "none failed" in pfl(folder, "check ./grades.py")
    use = "--use ./grades.py"
    pfl(folder, f"{use} import marks.csv --client school --label grade --task grades:4 --unit marks -o data")
    pfl(folder, f"{use} partition data -o p")
    pfl(folder, f"{use} compare p -o c --methods fedavg,ditto {SETTINGS}")
    rows = json.loads((folder / "c" / "comparison" / "metrics.json").read_text(encoding="utf-8"))["methods"]
    off = {row["label"]: row["metrics"]["grades_steps_off"]["value"] for row in rows}
    assert off["ditto"] < 0.9 * off["fedavg"]
    shown = pfl(folder, f"{use} show c")
    assert f"{off['ditto']:.3f}" in shown
    assert "accuracy" not in shown
    pfl(folder, f"{use} evaluate c/seed-0/fedavg c/seed-0/ditto -o e --metric grades_steps_off")
    pfl(folder, f"{use} report c -o page.html")
    assert "steps off" in (folder / "page.html").read_text(encoding="utf-8")
    for line, message in (
        ("partition data -o x", "unknown task 'grades'"),
        ("show c", "unknown metric 'grades_steps_off'"),
        ("replay p -o x", "unknown task 'grades'"),
        (f"{use} partition data -o x --poison 0.2:flip", "flips classes"),
        (f"{use} personalize fedproto p -o x", "fedproto learns classes, and the task is grades"),
    ):
        done = call(folder, line)
        assert (done.returncode in (2, 3), message in done.stderr) == (True, True), done.stderr
        assert not (folder / "x").exists()
    assert "2 the same to the last bit" in pfl(folder, f"{use} replay p -o again")


def test_tables_in_python_know_a_task_whose_file_is_named(tmp_path, monkeypatch):
    file = new("task", tmp_path / "marks.py")
    monkeypatch.syspath_prepend(tmp_path)
    draw, client = np.random.default_rng(0), np.repeat(np.arange(3), 40)
    x = draw.normal(size=(120, 3)).astype(np.float32)
    y = np.digitize(x[:, 0], [-1, 0, 1])
    how = {"model": "mlp", "rounds": 2, "participation": 1.0, "quiet": True}
    task = importlib.import_module("marks").TASK(3)
    result = simulate("fedavg", Federation.from_arrays(x, y, client, task=task), **how)
    with pytest.raises(UsageError, match="unknown task 'marks'") as error:
        table({"fedavg": result})
    assert "task='./marks.py' in Python" in error.value.fix[-1]
    named = simulate("fedavg", Federation.from_arrays(x, y, client, task=f"{file}:3"), **how)
    found = named.predictions["test"]
    assert np.array_equal(found.p, result.predictions["test"].p)
    off = np.abs((found.p > 0.5).sum(axis=1) - found.y).mean()
    assert table({"fedavg": named}).loc["fedavg", "marks_steps_off"] == pytest.approx(off)


def test_a_file_whose_task_has_no_metrics_is_refused(tmp_path, pfl, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "no_metrics.py").write_text("TASK = None\n", encoding="utf-8")
    ran = pfl("check", "./no_metrics.py")
    assert (ran.code, "has no METRICS" in ran.err) == (InputError.exit_code, True)


def test_a_new_task_does_not_have_the_name_of_a_task_of_pfl(tmp_path, pfl, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = pfl("new", "task", "count.py")
    assert (ran.code, "'count' is a task of pfl" in ran.err) == (UsageError.exit_code, True)
