"""Which commands follow a quantity and a count, and what the others say, as docs/tasks.md lists them."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys

import h5py
import numpy as np
import pytest

from helpers import ROOT
from pflcli import (
    build_datastore,
    evaluate,
    export,
    extract,
    import_data,
    new_client,
    partition,
    personalize,
    predict,
    train_global,
)
from pflcli.artifacts.reader import open_artifact
from pflcli.core.errors import InputError

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
    "predict --answers label": (
        "predict d {task}.csv --client c1 --answers label",
        "--answers label reveals classes alone, and the task is {task}",
    ),
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
    import_data(table, folder / "data", client="who", label="y", task=request.param, unit="EUR")
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


@pytest.fixture(scope="module")
def stores(chain):
    """Return a run of knn-per, whose clients predict with a store."""
    _, folder = chain
    train_global(folder / "p", folder / "g", **SETTINGS)
    build_datastore(extract(folder / "g", folder / "em"), folder / "ds")
    return personalize("knn-per", folder / "ds", folder / "knn", options={"k": 5})


def read_test(run, client):
    """Return the stored test predictions (n,), labels and sample numbers of a client."""
    with h5py.File(run / "predictions.h5") as file:
        first, last = file["test/offsets"][client : client + 2]
        return tuple(file[f"test/{name}"][first:last] for name in ("p", "y", "sample"))


@pytest.mark.parametrize("method", ["d", "f", "knn"])
def test_predict_gives_the_stored_predictions_in_the_unit_of_labels(chain, stores, method, tmp_path):
    task, folder = chain
    lines = (folder / f"{task}.csv").read_text(encoding="utf-8").splitlines()
    p, y, sample = read_test(folder / method, 1)
    (tmp_path / "test.csv").write_text(
        "\n".join([lines[0], *(lines[at + 1] for at in sample)]) + "\n", encoding="utf-8"
    )
    assert [float(lines[at + 1].split(",")[-1]) for at in sample] == y.tolist()
    predicted = predict(folder / method, tmp_path / "test.csv", client="c1", coverage=0.8)
    assert np.array_equal(predicted.p, p)
    with h5py.File(folder / method / "predictions.h5") as file:
        first, last = file["validation/offsets"][1:3]
        known, label = file["validation/p"][first:last, 0], file["validation/y"][first:last]
    errors = np.sort(np.abs(known.astype(float) - label))
    threshold = errors[int(np.ceil((len(errors) + 1) * 0.8)) - 1]
    row = predicted.rows()[0]
    low = max(p[0, 0] - threshold, 0) if task == "count" else p[0, 0] - threshold
    assert [*row] == ["sample", "prediction", "low", "high"]
    expected = (p[0, 0], low, p[0, 0] + threshold)
    assert (row["prediction"], row["low"], row["high"]) == pytest.approx(expected, rel=1e-5)
    assert predicted.unit == "EUR"


def test_predictions_are_written_in_every_form(pfl, chain, monkeypatch, tmp_path):
    task, folder = chain
    monkeypatch.chdir(folder)
    words = ("predict", "d", f"{task}.csv", "--client", "c1", "--coverage", "0.99", "--answers", "rounded:1")
    heading, first, *_ = pfl(*words).out.splitlines()
    assert heading == "sample,prediction,low,high"
    shown = json.loads(pfl(*words, "--format", "jsonl").out.splitlines()[0])
    # ten validation samples are too few for 0.99: the interval has no end
    assert (shown["low"], shown["high"]) == ({"quantity": None, "count": 0.0}[task], None)
    assert first.split(",")[1] == str(shown["prediction"]) == str(round(shown["prediction"], 1))
    assert pfl(*words, "-o", tmp_path / "x.npz").code == 0
    arrays = np.load(tmp_path / "x.npz")
    assert {arrays[name].shape for name in ("prediction", "low", "high")} == {(200,)}
    assert json.loads(pfl(*words, "--json").out)["unit"] == "EUR"
    by_column = pfl("predict", "d", f"{task}.csv", "--client-column", "who").out.splitlines()
    assert by_column[0] == "sample,client,prediction"
    assert by_column[1].startswith("0,c0,")
    # All clients of fedavg have the global model.
    assert predict("f", f"{task}.csv", client="none").p == pytest.approx(predict("f", f"{task}.csv", client="c2").p)


@pytest.mark.parametrize("method", ["d", "f", "knn"])
def test_a_new_client_of_the_task_is_predicted_and_scored(chain, stores, method, tmp_path):
    task, folder = chain
    lines = (folder / f"{task}.csv").read_text(encoding="utf-8").splitlines()
    use = ["use", *np.resize(["train", "train", "train", "validation", "test"], 50)]
    later = "\n".join(f"{line},{word}" for line, word in zip([lines[0], *lines[-50:]], use, strict=True))
    (tmp_path / "later.csv").write_text(later + "\n", encoding="utf-8")
    made = new_client(folder / method, tmp_path / "later.csv", tmp_path / "new", client="later", split_column="use")
    assert made.summary["clients"] == 5
    open_artifact(tmp_path / "new").verify()
    p, y, _ = read_test(tmp_path / "new", 4)
    assert (y.dtype, y.tolist()) == (np.float64, [float(line.split(",")[-1]) for line in lines[-50:][4::5]])
    rmse = np.sqrt(np.mean((p[:, 0].astype(float) - y) ** 2))
    evaluate([tmp_path / "new"], tmp_path / "e", metrics=["rmse"])
    with (tmp_path / "e" / "clients.csv").open(newline="", encoding="utf-8") as file:
        scored = {row["name"]: float(row["rmse"]) for row in csv.DictReader(file)}
    assert scored["later"] == pytest.approx(rmse, rel=1e-4)
    again = predict(tmp_path / "new", tmp_path / "later.csv", client="later")
    assert again.p[4::5, 0] == pytest.approx(p[:, 0], rel=1e-6)


def test_a_new_client_needs_labels_of_the_task(chain, tmp_path):
    task, folder = chain
    wrong = {"quantity": "often", "count": "-1"}[task]
    (tmp_path / "x.csv").write_text(f"a,b,y\n1,2,3\n1,2,{wrong}\n", encoding="utf-8")
    words = {"quantity": "'often' is not a number", "count": "-1 is not a whole number from 0"}[task]
    with pytest.raises(InputError, match=words):
        new_client(folder / "d", tmp_path / "x.csv", tmp_path / "new", client="later")


@pytest.mark.parametrize("method", ["d", "knn"])
def test_the_script_of_an_export_predicts_as_pfl(chain, stores, method, tmp_path):
    task, folder = chain
    made = export(folder / method, tmp_path / "model", client="c1")
    assert (made.model["classes"], made.model["task"], made.model["unit"]) == ([], task, "EUR")
    assert made.model["agreement"]["beyond"] == 0
    words = [sys.executable, tmp_path / "model" / "reader.py", tmp_path / "model", folder / f"{task}.csv"]
    heading, *rows = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert heading == "sample,prediction"
    expected = predict(folder / method, folder / f"{task}.csv", client="c1").p[:, 0]
    assert [float(row.split(",")[1]) for row in rows] == pytest.approx(expected.tolist(), rel=1e-5, abs=1e-5)


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
