"""A kind of task that pfl does not have, quantities, is one new file and one line of another, from data to the page."""

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

import pytest

from helpers import ROOT
from pflcli.core import tasks
from pflcli.core.errors import UsageError
from pflcli.core.metrics import catalogue

TASK = """
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pflcli.core.errors import InputError
from pflcli.core.metrics.metric import ranking


def _off(p, y):
    return np.abs(p[:, 0].astype(np.float64) - y)


METRICS = ranking("mae", "MAE", unit="", percent=False, lower_is_better=True, task="quantities", per_sample=_off)


@dataclass(frozen=True)
class Quantity:
    kind: ClassVar[str] = "quantities"
    score: ClassVar[str] = "negative MAE"
    outputs: int = 1
    names: tuple[str, ...] = ()
    unit: str = ""

    def check(self, where, y):
        if not np.isfinite(y).all():
            raise InputError(f"{where}: row {np.flatnonzero(~np.isfinite(y))[0]} has no finite label")
        return y.astype(np.float32)

    def describe(self, y):
        return {"mean": float(y.mean())}

    def losses(self, outputs, y):
        return (outputs[:, 0] - y) ** 2

    def mean_losses(self, outputs, y, weight, scale=1.0):
        off, factor = outputs[..., 0] - y, weight * (scale[:, None] if hasattr(scale, "shape") else scale)
        return (off**2 * weight).sum(dim=1), (2 * off * factor)[..., None]

    def predict(self, outputs):
        return outputs.float().cpu().numpy()

    def default(self):
        return np.zeros(1, np.float32)

    def bounded_losses(self, p, y):
        return np.minimum(_off(p, y) ** 2, 16)

    def scores(self, p, y):
        return -_off(p, y)
"""
PATCH = {
    "core/engine/quantity.py": lambda code: TASK,
    "core/tasks.py": lambda code: code.replace(
        "}  # fmt: skip", '    "quantities": Kind("pflcli.core.engine.quantity", "Quantity", ("mae",)),\n}'
    ),
}
"""What a contributor changes in pflcli for a new kind of task, from data to the page."""
MAX_FILES = 5
DATA = """
import numpy as np

from pflcli.core.datasets import Samples
from pflcli.core.engine.quantity import Quantity

CLASSES, SHAPE, LICENCE = 1, "4", "none"


def load(root, *, download=False):
    draw = np.random.default_rng(0)
    owner = np.repeat(np.arange(8), 60)
    x = draw.normal(size=(480, 4)).astype(np.float32)
    y = (2 + 0.5 * x[:, 0] + (owner % 2) * x[:, 1]).astype(np.float32)
    return Samples(x, y, 1, owner=np.char.add("c", owner.astype(str)), task=Quantity(unit="EUR"))
"""
SETTINGS = "--model mlp --rounds 6 --participation 1 --batch-size 16 --lr 0.1 --eval-every 1"


@pytest.fixture(scope="module")
def patched(tmp_path_factory):
    """Return a folder with a copy of the package, with the new task, and a user's file with samples of it."""
    folder = tmp_path_factory.mktemp("task")
    shutil.copytree(ROOT, folder / "pflcli", ignore=shutil.ignore_patterns("__pycache__"))
    for name, change in PATCH.items():
        file = folder / "pflcli" / name
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        after = change(before)
        assert after != before
        file.write_text(after, encoding="utf-8")
    (folder / "prices.py").write_text(DATA, encoding="utf-8")
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
    pfl(patched, "partition ./prices.py -o p")
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
    assert len(TASK.strip().splitlines()) < 60


def test_partition_and_predictions_have_the_task(compared):
    task = {"kind": "quantities", "fields": {"outputs": 1, "names": [], "unit": "EUR"}}
    assert {name: read_facts(compared, name)["summary"]["task"] for name in "pfd"} == dict.fromkeys("pfd", task)
    header, first, *_ = (compared / "p" / "clients.csv").read_text(encoding="utf-8").splitlines()
    assert header == "client,name,train,validation,test,mean"
    assert 1 < float(first.split(",")[-1]) < 3
    assert "task" not in json.loads((compared / "p" / "manifest.json").read_text(encoding="utf-8"))["request"]


def test_rounds_and_tables_follow_the_score_and_the_metric_of_the_task(compared):
    with (compared / "d" / "rounds.csv").open(newline="", encoding="utf-8") as file:
        scores = [float(row["personal_accuracy"]) for row in csv.DictReader(file)]
    assert max(scores) < 0
    assert read_facts(compared, "d")["summary"]["reported_round"] == scores.index(max(scores)) + 1
    table = pfl(compared, "show c")
    assert "MAE" in table
    assert "accuracy" not in table
    rows = json.loads((compared / "c" / "comparison" / "metrics.json").read_text(encoding="utf-8"))["methods"]
    assert {"fedavg", "ditto", "local", "pooled"} == {row["label"] for row in rows}  # not constant
    error = {row["label"]: row["metrics"]["mae"]["value"] for row in rows}
    gain = next(row["metrics"]["gain"]["value"] for row in rows if row["label"] == "ditto")
    assert gain == pytest.approx(error["fedavg"] - error["ditto"])
    assert error["ditto"] < 0.8 * error["fedavg"]
    assert f"test MAE: {error['ditto']:.3f}" in pfl(compared, "show c/seed-0/ditto")
    assert "MAE" in pfl(compared, "evaluate f d -o e")
    pfl(compared, "report c -o page.html")
    assert (compared / "page.html").stat().st_size > 10_000
    assert "verified" in pfl(compared, "show c --verify")


def test_simulate_gives_the_predictions_of_personalize(compared):
    code = """
import h5py, numpy as np
from pflcli import Federation, simulate, table
federation = Federation.from_dataset("./prices.py")
how = dict(model="mlp", rounds=6, participation=1.0, batch_size=16, lr=0.1, eval_every=1, quiet=True)
results = {name: simulate(name, federation, **how) for name in ("fedavg", "ditto")}
with h5py.File("f/predictions.h5") as file:
    assert np.array_equal(file["test/p"][...], results["fedavg"].predictions["test"].p)
frame = table({**results, "stored": "f"})
assert [*frame.columns][:2] == ["seeds", "mae"], frame.columns
assert frame.loc["stored", "mae"] == frame.loc["fedavg", "mae"]
"""
    done = call(compared, "-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("partition ./prices.py -o x --scheme dirichlet --clients 3", "scheme dirichlet divides by classes"),
        ("partition ./prices.py -o x --poison 0.2:flip", "--poison 0.2:flip flips classes"),
        ("personalize fedproto p -o x", "fedproto learns classes, and labels are quantities"),
        ("train-global p -o x --method fedproto", "fedproto learns classes, and labels are quantities"),
        ("personalize fedavg p -o x --report best --round-metric auroc", "auroc is a metric of classes"),
        ("evaluate f d -o x --metric accuracy", "accuracy is a metric of classes"),
        ("evaluate f d -o x --target 0.5", "--target is for classes"),
        ("compare p -o x --methods fedavg --coverage 0.9", "--coverage is for classes"),
        ("tune ditto p -o x --metric f1", "f1 is a metric of classes"),
        ("stack f d -o x", "pfl stack reads classes, and labels are quantities"),
        ("export d -o x", "what opens stored models reads classes, and labels are quantities"),
        ("predict d prices.py", "what opens stored models reads classes, and labels are quantities"),
        ("audit d -o x", "what opens stored models reads classes, and labels are quantities"),
        ("extract c/seed-0/backbone -o x", "pfl extract reads classes"),
        ("federation create d -o x", "pfl federation reads classes"),
        ("show --plot x.svg p", "the picture of a partition reads classes"),
    ],
)
def test_what_is_for_classes_is_refused(line, message, compared):
    done = call(compared, "-m", "pflcli", *line.split())
    assert done.returncode in (2, 3), done.stderr
    assert message in done.stderr
    assert not (compared / "x").exists()


KNOWS_CLASSES = re.compile(
    r"isinstance\([^()]*Classification\)"
    r'|(kind|task)\b *[!=]= *(\w+\.)*(CLASSES|"classes")'
    r'|\bscore [!=]= "accuracy"'
)
"""How code asks whether labels are classes."""
ALLOWED = {
    "plugins/accelerated/offers.py": "compiled loops have the loss of classes only",
    "artifacts/client_blocks.py": "checks labels without PyTorch",
    "workflow/training/run_spec.py": "needs no import for classes",
    "artifacts/kinds/__init__.py": "refuses commands that read classes",
    "artifacts/kinds/partition.py": "counts classes of clients without PyTorch",
    "artifacts/kinds/predictions.py": "probabilities add up to 1",
    "commands/partition.py": "measures how far the classes of clients differ",
    "core/engine/federation.py": "the number of classes",
    "core/metrics/catalogue.py": "has the metrics of classes itself",
    "core/simulation/federation.py": "describes the classes of clients",
    "data/preparation/poison.py": "flips classes",
    "commands/train_global.py": "accuracy of a backbone",
    "core/simulation/simulate.py": "Result.accuracy",
    "evaluation/in_memory.py": "accuracy by round",
    "plugins/replay/agreement.py": "predictions of another class, and accuracy",
    "plugins/page/in_memory.py": "pictures of the classes of clients, and of accuracy by round",
    "plugins/page/runs.py": "pictures of the classes of clients, and of accuracy by round",
    "evaluation/round_costs.py": "rounds to an accuracy",
    "evaluation/scoring.py": "shares of the most frequent class",
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
        assert getattr(importlib.import_module(place.module), place.name).kind == kind
        assert all(catalogue.METRICS[name].task == kind for name in place.metrics)
    with pytest.raises(UsageError, match="unknown kind of task 'quantity'"):
        tasks.find("quantity")
