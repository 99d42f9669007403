"""A task that pfl does not have, ordinal classes, is one new file, from data to the page."""

from __future__ import annotations

import csv
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from helpers import ROOT
from pflcli.core import tasks
from pflcli.core.errors import UsageError
from pflcli.core.metrics import catalogue

TASK = """
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pflcli.core.engine.tasks import Task
from pflcli.core.metrics.metric import ranking

METRICS = ("steps_off", "mae")


def _off(p, y):
    return np.abs((p > 0.5).sum(axis=1) - y)


ENTRIES = ranking("steps_off", "steps off", unit="steps", percent=False, lower_is_better=True, per_sample=_off)


@dataclass(frozen=True)
class Ordinal(Task):
    kind: ClassVar[str] = "ordinal"
    score: ClassVar[str] = "closeness"

    outputs: int = 4

    @classmethod
    def from_word(cls, option, unit):
        return cls(int(option or 4), unit=unit)

    def find_invalid(self, y):
        bad = np.flatnonzero(~np.isin(y, range(self.outputs + 1)))
        return (int(bad[0]), f"is no grade from 0 to {self.outputs}") if len(bad) else None

    def describe(self, y):
        return {"mean grade": float(y.mean())}

    def losses(self, outputs, y):
        above = (y[:, None] > y.new_tensor(range(self.outputs))).to(outputs.dtype)
        return (outputs.exp().log1p() - above * outputs).sum(dim=1)

    def activate(self, outputs):
        return outputs.sigmoid()

    def default(self):
        return np.full(self.outputs, 0.5, np.float32)

    def bounded_losses(self, p, y):
        return _off(p, y).astype(np.float64)

    def scores(self, p, y):
        return 1 - _off(p, y) / self.outputs


TASK = Ordinal
"""
PATCH = {"core/engine/tasks/ordinal.py": lambda code: TASK}
"""What a contributor changes in pflcli for a new kind of task, from data to the page."""
MAX_FILES = 1
SETTINGS = "--model mlp --rounds 6 --participation 1 --batch-size 16 --lr 0.1 --eval-every 1"


@pytest.fixture(scope="module")
def patched(tmp_path_factory):
    """Return a folder with a copy of the package, with the new task, and a table with labels of it."""
    folder = tmp_path_factory.mktemp("task")
    shutil.copytree(ROOT, folder / "pflcli", ignore=shutil.ignore_patterns("__pycache__"))
    for name, change in PATCH.items():
        file = folder / "pflcli" / name
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        after = change(before)
        assert after != before
        file.write_text(after, encoding="utf-8")
    draw = np.random.default_rng(0)
    client, x = np.repeat(np.arange(8), 60), draw.normal(size=(480, 4))
    grade = np.digitize(x[:, 0] + (2 * (client % 2) - 1) * 2 * x[:, 1], [-2, -1, 1, 2])
    frame = pd.DataFrame(x.round(4), columns=list("abcd")).assign(school=client, grade=grade)
    frame.to_csv(folder / "grades.csv", index=False)
    return folder


def call(folder, *words):
    surroundings = {**os.environ, "PYTHONPATH": str(folder), "PFL_ACCELERATED": "0", "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, *map(str, words)], cwd=folder, capture_output=True, text=True, env=surroundings
    )


def pfl(folder, line, code=0):
    """Run a command, and return what it printed; it must end with the exit code."""
    done = call(folder, "-m", "pflcli", *line.split())
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def compared(patched):
    """Return the folder with a partition ``p``, runs ``f`` and ``d`` of it, and a comparison ``c``."""
    pfl(patched, "import grades.csv --client school --label grade --task ordinal:4 --unit grades -o data")
    pfl(patched, "partition data -o p")
    pfl(patched, f"personalize fedavg p -o f {SETTINGS}")
    pfl(patched, f"personalize ditto p -o d --report best {SETTINGS}")
    pfl(patched, f"compare p -o c --methods fedavg,ditto {SETTINGS}")
    return patched


def read_facts(folder, name):
    return json.loads((folder / name / "manifest.json").read_text(encoding="utf-8"))


def test_a_new_kind_of_task_changes_few_files(patched):
    old = {file.relative_to(ROOT): file.read_bytes() for file in ROOT.rglob("*.py")}
    new = {file.relative_to(patched / "pflcli"): file.read_bytes() for file in (patched / "pflcli").rglob("*.py")}
    changed = sorted(name.as_posix() for name in new if new[name] != old.get(name))
    assert changed == sorted(PATCH)
    assert len(changed) <= MAX_FILES
    assert len(TASK.strip().splitlines()) < 65


def test_partition_and_predictions_have_the_task(compared):
    task = {"kind": "ordinal", "fields": {"outputs": 4, "names": [], "unit": "grades", "past": []}}
    assert {name: read_facts(compared, name)["summary"]["task"] for name in ("data", *"pfd")} == dict.fromkeys(
        ("data", *"pfd"), task
    )
    header, first, *_ = (compared / "p" / "clients.csv").read_text(encoding="utf-8").splitlines()
    assert header == "client,name,train,validation,test,mean grade"
    assert 1 < float(first.split(",")[-1]) < 3
    assert "task" not in json.loads((compared / "p" / "manifest.json").read_text(encoding="utf-8"))["request"]


def test_rounds_and_tables_follow_the_score_and_the_metric_of_the_task(compared):
    with (compared / "d" / "rounds.csv").open(newline="", encoding="utf-8") as file:
        scores = [float(row["personal_accuracy"]) for row in csv.DictReader(file)]
    assert 0 < max(scores) < 1
    assert read_facts(compared, "d")["summary"]["reported_round"] == scores.index(max(scores)) + 1
    table = pfl(compared, "show c")
    assert "steps off" in table
    assert "accuracy" not in table
    rows = json.loads((compared / "c" / "comparison" / "metrics.json").read_text(encoding="utf-8"))["methods"]
    assert {"fedavg", "ditto", "local", "pooled"} == {row["label"] for row in rows}  # neither constant nor alone
    error = {row["label"]: row["metrics"]["steps_off"]["value"] for row in rows}
    gain = next(row["metrics"]["gain"]["value"] for row in rows if row["label"] == "ditto")
    assert gain == pytest.approx(error["fedavg"] - error["ditto"])
    assert error["ditto"] < 0.8 * error["fedavg"]
    assert f"test steps off: {error['ditto']:.3f}" in pfl(compared, "show c/seed-0/ditto")
    assert "steps off" in pfl(compared, "evaluate f d -o e")
    pfl(compared, "report c -o page.html")
    assert (compared / "page.html").stat().st_size > 10_000
    assert "verified" in pfl(compared, "show c --verify")


def test_simulate_gives_the_predictions_of_personalize(compared):
    code = """
import h5py, numpy as np
import pandas as pd
from pflcli import Federation, simulate, table
frame = pd.read_csv("grades.csv")
x = frame[list("abcd")].to_numpy("float32")
federation = Federation.from_arrays(x, frame["grade"], frame["school"], task="ordinal", unit="grades")
how = dict(model="mlp", rounds=6, participation=1.0, batch_size=16, lr=0.1, eval_every=1, quiet=True)
results = {name: simulate(name, federation, **how) for name in ("fedavg", "ditto")}
with h5py.File("f/predictions.h5") as file:
    assert np.array_equal(file["test/p"][...], results["fedavg"].predictions["test"].p)
frame = table({**results, "stored": "f"})
assert [*frame.columns][:2] == ["seeds", "steps_off"], frame.columns
assert frame.loc["stored", "steps_off"] == frame.loc["fedavg", "steps_off"]
"""
    done = call(compared, "-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("partition data -o x --scheme dirichlet --clients 3", "scheme dirichlet divides by classes"),
        ("partition data -o x --poison 0.2:flip", "--poison 0.2:flip flips classes"),
        ("personalize fedproto p -o x", "fedproto learns classes, and the task is ordinal"),
        ("train-global p -o x --method fedproto", "fedproto learns classes, and the task is ordinal"),
        ("personalize fedavg p -o x --report best --round-metric auroc", "auroc is a metric of classes"),
        ("evaluate f d -o x --metric accuracy", "accuracy is a metric of classes"),
        ("compare p -o x --methods fedavg --coverage 0.9", "--coverage is for classes and numbers"),
        ("tune ditto p -o x --metric f1", "f1 is a metric of classes"),
        ("stack f d -o x", "pfl stack has no rule that pools predictions of the task ordinal"),
        ("predict d grades.csv --client 1 --answers label", "--answers label reveals classes alone"),
    ],
)
def test_what_is_for_classes_is_refused(line, message, compared):
    done = call(compared, "-m", "pflcli", *line.split())
    assert done.returncode in (2, 3), done.stderr
    assert message in done.stderr
    assert not (compared / "x").exists()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("predict d grades.csv --client 1", "sample,prediction(0),prediction(1),prediction(2),prediction(3)"),
        ("export d --client 1 -o model", "differ by at most"),
        ("audit d -o a", "confidence"),
        ("federation create f -o fed", "fed"),
        ("evaluate f d -o t --target 0.5", "rounds to 0.5"),
        ("show --plot x.svg p", "x.svg"),
    ],
)
def test_commands_after_training_follow_the_task(line, words, compared):
    assert words in pfl(compared, line)


KNOWS_CLASSES = re.compile(
    r"isinstance\([^()]*Classification\)"
    r'|(kind|task)\b *[!=]= *(\w+\.)*(CLASSES|"classes")'
    r'|\bscore [!=]= "accuracy"'
)
"""How code asks whether labels are classes."""
ALLOWED = {
    "methods/alone.py": "classifiers, or models of numbers",
    "methods/knn_peers.py": "means of classes, or of intervals of numbers",
    "methods/parts/logarithmic_pool.py": "the pool of probabilities, or of numbers",
    "workflow/prediction/disclosure.py": "only a class can be revealed without its probability",
    "methods/knn_per.py": "votes for classes, or means of neighbours",
    "methods/knn_per_extended.py": "votes that hide distances",
    "methods/constant.py": "frequencies of classes, or a mean label",
    "artifacts/client_blocks.py": "checks labels without PyTorch",
    "workflow/training/run_spec.py": "needs no import for classes",
    "artifacts/kinds/__init__.py": "refuses commands that read classes",
    "artifacts/kinds/partition.py": "counts classes of clients without PyTorch",
    "artifacts/kinds/predictions.py": "probabilities add up to 1",
    "commands/partition.py": "measures how far the classes of clients differ",
    "core/engine/federation.py": "the number of classes",
    "core/simulation/federation.py": "describes the classes of clients",
    "data/preparation/poison.py": "flips classes",
    "commands/train_global.py": "accuracy of a backbone",
    "core/simulation/simulate.py": "Result.accuracy",
    "evaluation/in_memory.py": "accuracy by round",
    "plugins/sites/scores.py": "pairs predictions that are right",
    "plugins/knn_tools/sweep.py": "counts predictions that are right, or scores numbers",
    "plugins/replay/agreement.py": "predictions of another class, and accuracy",
    "plugins/page/in_memory.py": "pictures of the classes of clients, and of accuracy by round",
    "plugins/page/runs.py": "pictures of the classes of clients, and of accuracy by round",
    "evaluation/round_costs.py": "rounds to an accuracy",
    "evaluation/records.py": "counts by class",
    "plugins/audits/update_attack.py": "counts of classes",
    "evaluation/coverage.py": "sets of classes, or intervals of numbers",
    "evaluation/scoring.py": "shares of the most frequent class",
    "evaluation/summary.py": "gains of errors in per cent",
}
"""The files that may ask, each with its reason: for another task they do nothing, or refuse."""


def test_only_few_files_know_that_labels_may_be_classes():
    found = {
        file.relative_to(ROOT).as_posix()
        for file in ROOT.rglob("*.py")
        if KNOWS_CLASSES.search(file.read_text(encoding="utf-8")) and file.relative_to(ROOT) != Path("core/tasks.py")
    }
    assert found == ALLOWED.keys(), sorted(found ^ ALLOWED.keys())


def test_kinds_are_those_of_their_classes():
    for kind, place in tasks.KINDS.items():
        assert (place.task.kind, place.metrics) == (kind, importlib.import_module(place.module).METRICS)
        assert {*place.metrics} <= catalogue.METRICS.keys()
    with pytest.raises(UsageError, match="unknown task 'quantities'"):
        tasks.find("quantities")
