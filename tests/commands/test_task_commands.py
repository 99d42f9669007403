"""Which commands follow a quantity and a count, and what the others say, as docs/tasks.md lists them."""

from __future__ import annotations

import json
import re

import h5py
import numpy as np
import pytest

from helpers import ROOT
from pflcli import evaluate, import_data, partition, personalize

SETTINGS = {"model": "mlp", "rounds": 2, "participation": 1.0, "batch_size": 10, "lr": 0.05}
WORDS = [f"--{name.replace('_', '-')} {value}" for name, value in SETTINGS.items()]
WORK = {
    "personalize": "personalize fedavg p -o x",
    "evaluate": "evaluate f d -o x --coverage 0.8",
    "compare": "compare p -o x --methods fedavg,ditto --coverage 0.8",
    "tune": "tune ditto p -o x --trials 2",
    "show": "show d --verify",
    "report": "report e -o x.html",
    "replay": "replay d -o x",
    "extract": "extract b -o x",
}
"""A line of each command that follows every task."""
REFUSED = {
    "predict": ("predict d {task}.csv", "a command that opens stored models reads classes, and the task is {task}"),
    "new-client": (
        "new-client d {task}.csv --client later --label y -o x",
        "a command that opens stored models reads classes, and the task is {task}",
    ),
    "export": ("export d -o x", "a command that opens stored models reads classes, and the task is {task}"),
    "audit": ("audit d -o x", "a command that opens stored models reads classes, and the task is {task}"),
    "stack": ("stack f d -o x", "pfl stack reads classes, and the task is {task}"),
    "federation": ("federation create d -o x", "pfl federation reads classes, and the task is {task}"),
    "import-predictions": (
        "import-predictions {task}.csv --like p --name other -o x",
        "pfl import-predictions reads classes, and the task is {task}",
    ),
    "evaluate --target": ("evaluate f d -o x --target 0.5", "--target is for classes, and the task is {task}"),
    "evaluate --group-scores": (
        "evaluate f d -o x --group-scores a",
        "--group-scores reads classes, and the task is {task}",
    ),
    "show --plot": ("show --plot x.svg p", "the picture of a partition reads classes, and the task is {task}"),
}
"""A line of each command that refuses other tasks than classes, and the refusal."""


@pytest.fixture(scope="module", params=["quantity", "count"])
def chain(request, tmp_path_factory):
    """Return the task and a folder with a table, a partition ``p``, a backbone ``b`` and runs ``f`` and ``d``."""
    folder, draw = tmp_path_factory.mktemp("chain"), np.random.default_rng(0)
    x, client = draw.normal(size=(200, 2)), np.repeat(np.arange(4), 50)
    line = x[:, 0] + 0.3 * client
    y = np.round(1000 + 50 * line, 2) if request.param == "quantity" else draw.poisson(np.exp(line))
    rows = [f"c{c},{a:.4f},{b:.4f},{label}" for c, (a, b), label in zip(client, x, y, strict=True)]
    table = folder / f"{request.param}.csv"
    table.write_text("\n".join(["who,a,b,y", *rows]) + "\n", encoding="utf-8")
    import_data(table, folder / "data", client="who", label="y", task=request.param)
    partition(folder / "data", folder / "p")
    for name, method in (("f", "fedavg"), ("d", "ditto")):
        personalize(method, folder / "p", folder / name, **SETTINGS)
    evaluate([folder / "f", folder / "d"], folder / "e")
    return request.param, folder


def run(pfl, folder, line, monkeypatch):
    monkeypatch.chdir(folder)
    word = line.split()[0]
    return pfl(
        *line.split(), *(" ".join(WORDS).split() if word in ("personalize", "compare", "tune", "train-global") else ())
    )


@pytest.mark.parametrize("command", WORK)
def test_commands_follow_the_task(pfl, chain, command, monkeypatch, tmp_path):
    task, folder = chain
    line = WORK[command].replace(" -o x", f" -o {tmp_path / 'x'}")
    if command == "extract":
        assert run(pfl, folder, f"train-global p -o {tmp_path / 'b'}", monkeypatch).code == 0
        line = line.replace(" b ", f" {tmp_path / 'b'} ")
    ran = run(pfl, folder, line, monkeypatch)
    assert ran.code == 0, ran.err
    assert command == "replay" or "accuracy" not in ran.out.lower(), ran.out
    if command == "extract":
        with h5py.File(tmp_path / "x" / "embeddings.h5") as stored, h5py.File(folder / "p" / "samples.h5") as samples:
            assert stored["train/y"].dtype == samples["y"].dtype == np.float64
    if command == "tune":
        best = json.loads((tmp_path / "x" / "tuning" / "manifest.json").read_text())["request"]
        assert best["metric"] == {"quantity": "rmse", "count": "poisson_deviance"}[task]


@pytest.mark.parametrize("command", REFUSED)
def test_commands_that_read_classes_say_so(pfl, chain, command, monkeypatch):
    task, folder = chain
    line, words = (text.replace("{task}", task) for text in REFUSED[command])
    ran = run(pfl, folder, line, monkeypatch)
    assert (ran.code in (2, 3), words in ran.err) == (True, True), ran.err
    assert not (folder / "x").exists()


def test_intervals_cover_numbers_as_computed_by_hand(pfl, chain, monkeypatch, tmp_path):
    _, folder = chain
    assert run(pfl, folder, f"evaluate d -o {tmp_path / 'x'} --coverage 0.8", monkeypatch).code == 0
    sets = json.loads((tmp_path / "x" / "metrics.json").read_text())["sets"]
    with h5py.File(folder / "d" / "predictions.h5") as file:
        known, tested = (
            [np.split(file[f"{split}/{name}"][...], file[f"{split}/offsets"][1:-1]) for name in ("p", "y")]
            for split in ("validation", "test")
        )
    width, covered, n = [], [], []
    for p, y, new, label in zip(*known, *tested, strict=True):
        errors = np.sort(np.abs(p[:, 0].astype(float) - y))
        threshold = errors[int(np.ceil((len(errors) + 1) * 0.8)) - 1]
        width.append(2 * threshold)
        covered.append(np.mean(np.abs(new[:, 0].astype(float) - label) <= threshold))
        n.append(len(label))
    own = sets["methods"]["ditto"]["thresholds"]["own"]
    assert own["set_size"]["value"] == pytest.approx(np.average(width, weights=n), rel=1e-9)
    assert own["set_size"]["unit"] == "unit of labels"
    assert own["coverage"]["value"] == pytest.approx(np.average(covered, weights=n), rel=1e-9)
    assert sets["score"] == "|label - p|"
    shown = pfl("show", tmp_path / "x").out
    assert "Prediction intervals at coverage 80 %" in shown
    assert "width" in shown


def test_the_page_of_tasks_lists_every_command():
    page = (ROOT.parent / "docs" / "tasks.md").read_text(encoding="utf-8")
    follow, refuse = re.search(r"follow every task: (.*?)\. .*?Not yet: (.*?)\.\n", page, re.DOTALL).groups()
    assert {*WORK} <= {*re.findall(r"`([^`]+)`", follow)}
    assert {*REFUSED} == {*re.findall(r"`([^`]+)`", refuse)}
