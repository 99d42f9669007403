"""Commands with a quantity and a count, in more depth than the table of tests/test_task_table.py."""

from __future__ import annotations

import csv
import json
import subprocess
import sys

import h5py
import numpy as np
import pytest
import torch

from pflcli import (
    Federation,
    audit,
    build_datastore,
    evaluate,
    export,
    extract,
    import_data,
    import_predictions,
    new_client,
    partition,
    personalize,
    predict,
    report,
    simulate,
    stack,
    train_global,
)
from pflcli.artifacts.reader import open_artifact
from pflcli.core.engine.tasks.count import Count, deviances
from pflcli.core.engine.tasks.quantity import Quantity
from pflcli.core.errors import InputError, UnsuitedError, UsageError
from pflcli.core.tasks import Labels
from pflcli.evaluation import figures, lineage
from pflcli.evaluation.charts import vega
from pflcli.evaluation.stored_comparison import read_comparison
from pflcli.plugins.audits import attacks
from pflcli.plugins.page import charts as page_charts
from pflcli.plugins.page import runs as page_runs

SETTINGS = {"model": "mlp", "eval_every": 1, "rounds": 2, "participation": 1.0, "batch_size": 10, "lr": 0.05}
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
    "predict": "predict d {task}.csv --client c1",
    "new-client": "new-client d {task}.csv --client later --label y -o x",
    "export": "export d --client c1 -o x",
    "audit": "audit d -o x",
    "stack": "stack f d -o x",
    "federation create": "federation create d -o x",
    "evaluate --target": "evaluate f d -o x --target 20",
    "evaluate --group-scores": "evaluate f d -o x --group-scores sex",
    "show --plot": "show --plot x.svg p",
}
"""A line of each command that follows every task."""


@pytest.fixture(scope="module", params=["quantity", "count"])
def chain(request, tmp_path_factory):
    """Return the task and a folder with a table, a partition ``p``, a backbone ``b`` and runs ``f`` and ``d``."""
    folder, draw = tmp_path_factory.mktemp("chain"), np.random.default_rng(0)
    x, client = draw.normal(size=(200, 2)), np.repeat(np.arange(4), 50)
    line = x[:, 0] + 0.3 * client
    y = np.round(1000 + 50 * line, 2) if request.param == "quantity" else draw.poisson(np.exp(line))
    values = zip(client, x, "mf" * 100, y, strict=True)
    rows = [f"c{c},{a:.4f},{b:.4f},{sex},{label}" for c, (a, b), sex, label in values]
    table = folder / f"{request.param}.csv"
    table.write_text("\n".join(["who,a,b,sex,y", *rows]) + "\n", encoding="utf-8")
    import_data(table, folder / "data", client="who", label="y", task=request.param, unit="EUR", keep=["sex"])
    partition(folder / "data", folder / "p")
    for name, method in (("f", "fedavg"), ("d", "ditto")):
        personalize(method, folder / "p", folder / name, apart=True, **SETTINGS)
    evaluate([folder / "f", folder / "d"], folder / "e")
    return request.param, folder


@pytest.fixture(scope="module")
def stores(chain):
    """Return a run of knn-per, whose clients predict with a store."""
    _, folder = chain
    train_global(folder / "p", folder / "g", **SETTINGS)
    build_datastore(extract(folder / "g", folder / "em"), folder / "ds")
    return personalize("knn-per", folder / "ds", folder / "knn", options={"k": 5})


def run(pfl, folder, line, monkeypatch):
    monkeypatch.chdir(folder)
    word = line.split()[0]
    return pfl(
        *line.split(), *(" ".join(WORDS).split() if word in ("personalize", "compare", "tune", "train-global") else ())
    )


@pytest.mark.parametrize("command", WORK)
def test_commands_follow_the_task(pfl, chain, command, monkeypatch, tmp_path):
    task, folder = chain
    line = WORK[command].replace(" -o x", f" -o {tmp_path / 'x'}").replace("{task}", task)
    line = line.replace("x.svg", str(tmp_path / "x.svg"))
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
    assert sets["score"] == "distance of the label from the prediction"
    shown = pfl("show", tmp_path / "x").out
    assert "Prediction intervals at coverage 80 %" in shown
    assert "width" in shown


def fit_by_hand(task, inputs, y, fold, ridge, unit):
    """Return the exponents that minimize the deviances / unit + ridge / 2 |b - 1 / M|^2, by small steps."""
    from scipy.optimize import minimize

    even = np.full(inputs.shape[1], 1 / inputs.shape[1])

    def loss(b):
        return task.curve(inputs[fold] @ b, y[fold])[0].sum() / unit + ridge / 2 * ((b - even) ** 2).sum()

    return minimize(loss, even, method="BFGS", options={"gtol": 1e-9}).x


def test_a_stack_mixes_numbers_by_the_loss_on_validation_samples(chain, stores, tmp_path):
    task, folder = chain
    made = stack([folder / name for name in ("f", "d", "knn")], tmp_path / "s", gate=False)
    assert [*made.summary["exponents"]] == ["ditto", "fedavg", "knn-per, votes"]
    of = Labels(1, **made.summary["task"]).task()
    parts = {}
    for name in ("d", "f", "knn"):
        with h5py.File(folder / name / "predictions.h5") as file:
            stored = "knn" if name == "knn" else "p"
            parts[name] = {split: file[f"{split}/{stored}"][...].astype(float) for split in ("validation", "test")}
            y = {split: file[f"{split}/y"][...] for split in ("validation", "test")}
    if task == "quantity":
        assert np.allclose(of.link(parts["d"]["test"]) * of.deviation + of.mean, parts["d"]["test"][:, 0])
    else:
        expected = np.log((parts["d"]["test"][:, 0] / of.mean + 0.01) / 1.01)
        assert np.allclose(of.link(parts["d"]["test"]), expected)
    inputs = np.stack([of.link(parts[name]["validation"]) for name in ("d", "f", "knn")], axis=1)
    unit = 2 * of.curve(inputs.mean(axis=1), y["validation"])[0].mean()
    b = fit_by_hand(of, inputs, y["validation"], slice(None), made.summary["ridge"], unit)
    assert [*made.summary["exponents"].values()] == pytest.approx(b, abs=1e-4)
    mixed = np.stack([of.link(parts[name]["test"]) for name in ("d", "f", "knn")], axis=1) @ b
    p = mixed * of.deviation + of.mean if task == "quantity" else np.exp(mixed) * of.mean
    with h5py.File(tmp_path / "s" / "predictions.h5") as file:
        assert file["test/p"][:, 0] == pytest.approx(p, rel=1e-3)
    # The folds leave samples out, and the pool is at least nearly as good as the best that it pools.
    best = min(of.curve(inputs[:, at], y["validation"])[0].mean() for at in range(3))
    assert made.summary["validation_loss"]["pool"] < 1.3 * best
    lines = (folder / f"{task}.csv").read_text(encoding="utf-8").splitlines()
    stored, _, sample = read_test(tmp_path / "s", 2)
    (tmp_path / "x.csv").write_text("\n".join([lines[0], *(lines[at + 1] for at in sample)]) + "\n", encoding="utf-8")
    assert predict(tmp_path / "s", tmp_path / "x.csv", client="c2").p == pytest.approx(stored, rel=1e-6)


def test_a_stack_keeps_for_a_client_what_predicts_better(chain, tmp_path):
    _, folder = chain
    made = stack([folder / "f", folder / "d"], tmp_path / "s", own=True)
    with h5py.File(tmp_path / "s" / "predictions.h5") as file, h5py.File(folder / "f" / "predictions.h5") as of_global:
        kept = ~file["tuned/pooled"][...].astype(bool)
        rows = np.repeat(kept, np.diff(file["test/offsets"][...]))
        assert np.array_equal(file["test/p"][...][rows], of_global["test/p"][...][rows])
        assert file["tuned/exponent ditto"].shape == (4,)
    assert {*made.summary["validation_loss"]} == {"pool", "global"}


def test_the_derivatives_by_which_a_stack_is_fitted_are_those_of_its_loss():
    for of in (Quantity(mean=5.0, deviation=2.0), Count(mean=2.0, deviance=1.5)):
        y, outputs, step = np.array([0.0, 3.0, 7.0]), np.array([-1.0, 0.3, 2.0]), 1e-5
        loss, slope, curvature = of.curve(outputs, y)
        ahead, behind = of.curve(outputs + step, y), of.curve(outputs - step, y)
        assert slope == pytest.approx((ahead[0] - behind[0]) / (2 * step), rel=1e-5)
        assert curvature == pytest.approx((ahead[1] - behind[1]) / (2 * step), rel=1e-5)
        p = of.predict(torch.from_numpy(outputs[:, None]))
        assert loss == pytest.approx(1 - of.scores(p, y), rel=1e-5)


def test_groups_are_scored_by_the_metric_of_the_task(chain, tmp_path):
    task, folder = chain
    metric = {"quantity": "rmse", "count": "poisson_deviance"}[task]
    evaluate([folder / "f", folder / "d"], tmp_path / "g", group_scores=["sex"])
    entry = json.loads((tmp_path / "g" / "metrics.json").read_text())["groups"][0]
    row = next(row for row in entry["rows"] if (row["label"], row["group"]) == ("ditto", "f"))
    with h5py.File(folder / "d" / "predictions.h5") as file:
        chosen = file["test/sample"][...] % 2 == 1  # the table has m and f in turn
        client = np.repeat(np.arange(4), np.diff(file["test/offsets"][...]))[chosen]
        p, y = file["test/p"][...][chosen], file["test/y"][...][chosen]
    losses = (p[:, 0].astype(float) - y) ** 2 if task == "quantity" else deviances(p, y)
    each = [losses[client == c].mean() ** (0.5 if task == "quantity" else 1) for c in range(4)]
    assert row["metrics"][metric]["value"] == pytest.approx(np.average(each, weights=np.bincount(client)), rel=1e-9)
    assert {*row["metrics"]} <= {metric, "gain", "gain_relative"}


def test_a_target_is_a_value_of_the_metric(chain, tmp_path):
    task, folder = chain
    facts = json.loads((folder / "f" / "manifest.json").read_text())["summary"]["task"]["fields"]
    with (folder / "f" / "rounds.csv").open(newline="", encoding="utf-8") as file:
        scores = [float(row["validation_accuracy"]) for row in csv.DictReader(file) if row["validation_accuracy"]]
    errors = [
        facts["deviation"] * (1 - score) ** 0.5 if task == "quantity" else facts["deviance"] * (1 - score)
        for score in scores
    ]
    assert errors[1] < errors[0]
    with h5py.File(folder / "f" / "predictions.h5") as file:  # the last round, by NumPy alone
        p, y = file["validation/p"][:, 0].astype(float), file["validation/y"][...]
    by_hand = np.sqrt(np.mean((p - y) ** 2)) if task == "quantity" else deviances(p[:, None], y).mean()
    assert errors[1] == pytest.approx(by_hand, rel=1e-4)
    made = evaluate([folder / "f"], tmp_path / "t", target=sum(errors) / 2)
    assert (
        json.loads((made.path / "metrics.json").read_text())["methods"][0]["metrics"]["rounds_to_target"]["value"] == 2
    )
    never = evaluate([folder / "f"], tmp_path / "n", target=0.9 * errors[1])
    assert json.loads((never.path / "metrics.json").read_text())["methods"][0]["metrics"]["rounds_to_target"]["n"] == 0
    with pytest.raises(UsageError, match="not a finite number"):
        evaluate([folder / "f"], tmp_path / "x", target=float("inf"))


def test_the_target_of_a_table_has_the_unit_of_labels(pfl, chain, tmp_path):
    _, folder = chain
    evaluate([folder / "f"], tmp_path / "t", target=20)
    assert "rounds to 20 EUR" in pfl("show", tmp_path / "t").out


def write_theirs(folder, path, change=0.0):
    """Write predictions of another tool: the stored ones of fedavg, plus a change, in another order."""
    lines = ["client,sample,split,prediction"]
    with h5py.File(folder / "f" / "predictions.h5") as file:
        for split in ("validation", "test"):
            owner = np.repeat(np.arange(4), np.diff(file[f"{split}/offsets"][...]))
            for c, sample, p in zip(owner, file[f"{split}/sample"][...], file[f"{split}/p"][:, 0], strict=True):
                lines.append(f"c{c},{sample},{split},{float(str(p)) + change!r}")
    path.write_text("\n".join([lines[0], *lines[:0:-1]]) + "\n", encoding="utf-8")


def test_numbers_of_another_tool_are_imported(chain, tmp_path):
    _, folder = chain
    write_theirs(folder, tmp_path / "p.csv")
    made = import_predictions(tmp_path / "p.csv", tmp_path / "theirs", like=folder / "p", name="theirs")
    with h5py.File(made.path / "predictions.h5") as mine, h5py.File(folder / "f" / "predictions.h5") as file:
        for name in ("p", "y", "sample", "offsets"):
            assert np.array_equal(mine[f"test/{name}"][...], file[f"test/{name}"][...])
    table = evaluate([made, folder / "f"], tmp_path / "e").table()
    assert table.iloc[0, 1] == table.iloc[1, 1]
    text = (tmp_path / "p.csv").read_text(encoding="utf-8")
    (tmp_path / "bad.csv").write_text(text.replace("client,sample,split,prediction", "client,sample,split,p(1)"))
    with pytest.raises(InputError, match="no column prediction"):
        import_predictions(tmp_path / "bad.csv", tmp_path / "x", like=folder / "p", name="theirs")
    last = text.rstrip().rpartition(",")[0]
    (tmp_path / "nan.csv").write_text(f"{last},nan\n", encoding="utf-8")
    with pytest.raises(InputError, match="not a finite number"):
        import_predictions(tmp_path / "nan.csv", tmp_path / "x", like=folder / "p", name="theirs")


def test_the_picture_of_a_partition_has_the_quartiles_of_each_client(chain):
    _, folder = chain
    spec = figures.draw_partition(open_artifact(folder / "p"))
    rows = spec["vconcat"][1]["data"]["values"]
    with h5py.File(folder / "p" / "samples.h5") as file:
        y, offsets = file["y"][...], file["offsets"][::3]
    for at, row in enumerate(rows):
        own = y[offsets[at] : offsets[at + 1]]
        expected = [at, own.min(), *np.quantile(own, [0.25, 0.5, 0.75]), own.max()]
        assert [*row.values()] == pytest.approx(expected, rel=1e-4)
    assert len(rows) == 4
    assert vega.render(spec).startswith(b"\x89PNG")


def test_the_page_shows_predicted_and_true_numbers_and_labels(chain, tmp_path):
    _, folder = chain
    artifact = open_artifact(folder / "e")
    comparison = read_comparison(artifact)
    charts = page_charts.draw(comparison, page_runs.read(comparison, lineage.trace(artifact)))
    by_key = {chart.key: chart for chart in charts}
    assert {"ranked", "predicted", "labels"} <= {*by_key}
    assert "time" not in by_key  # samples were split at random
    rows = by_key["predicted"].spec["layer"][1]["data"]["values"]
    with h5py.File(folder / "d" / "predictions.h5") as file:
        p, y = file["test/p"][:, 0], file["test/y"][...]
    assert comparison.chosen == "ditto"
    assert [row["true"] for row in rows] == pytest.approx(y, rel=1e-4)
    assert [row["predicted"] for row in rows] == pytest.approx(p, rel=1e-4, abs=1e-4)
    assert {row["client"] for row in rows} == {"c0", "c1", "c2", "c3"}
    assert by_key["predicted"].spec["layer"][1]["encoding"]["x"]["title"] == "true, EUR"
    assert [row["client"] for row in by_key["labels"].spec["data"]["values"]] == ["c0", "c1", "c2", "c3"]


def test_the_page_shows_errors_over_time_if_samples_are_in_time(tmp_path):
    draw = np.random.default_rng(1)
    lines = ["who,day,a,y"]
    lines += [
        f"c{c},{day},{draw.normal():.3f},{10 * day * draw.normal():.2f}" for c in range(3) for day in range(1, 61)
    ]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    import_data(tmp_path / "t.csv", tmp_path / "data", client="who", label="y", order="day", task="quantity", window=0)
    partition(tmp_path / "data", tmp_path / "p")
    personalize("fedavg", tmp_path / "p", tmp_path / "f", **SETTINGS)
    artifact = open_artifact(evaluate([tmp_path / "f"], tmp_path / "e").path)
    comparison = read_comparison(artifact)
    charts = page_charts.draw(comparison, page_runs.read(comparison, lineage.trace(artifact)))
    rows = next(chart for chart in charts if chart.key == "time").spec["data"]["values"]
    with h5py.File(tmp_path / "f" / "predictions.h5") as file:
        errors = np.abs(file["test/p"][:, 0].astype(float) - file["test/y"][...]).reshape(3, 12)
    assert [row["error"] for row in rows] == pytest.approx(errors.mean(axis=0), rel=1e-4)


def test_a_page_of_results_in_memory_shows_numbers(tmp_path):
    draw = np.random.default_rng(0)
    x, owner = draw.normal(size=(120, 2)).astype("float32"), np.repeat(np.arange(3), 40)
    federation = Federation.from_arrays(x, 7 * x[:, 0] + owner, owner, task="quantity", unit="EUR")
    result = simulate("fedavg", federation, quiet=True, **SETTINGS)
    made = report({"fedavg": result}, tmp_path / "page.html")
    page = made.path.read_text(encoding="utf-8")
    for title in ("Predicted and true", "Labels of each client"):
        assert title in page


@pytest.mark.parametrize("method", ["d", "knn"])
def test_an_audit_attacks_by_the_loss_of_numbers(chain, stores, method, tmp_path):
    task, folder = chain
    made = audit(folder / method, tmp_path / "a")
    rows = {row["attack"]: row for row in json.loads((made.path / "audit.json").read_text())["attacks"]}
    assert {*rows} == {"confidence"} | ({"calibrated", "neighbours", "distance"} if method == "knn" else set())
    assert rows["confidence"]["sees"] == "the predicted numbers"
    if method == "knn":
        assert rows["distance"]["auc"] > 0.95  # the store has the training samples
    p, y = np.array([[1.0], [4.0]], np.float32), np.array([1.5, 1.0])
    of = Labels(1, **json.loads((folder / "d" / "manifest.json").read_text())["summary"]["task"])
    scored = attacks.score_samples({"p": p}, y, None, of)["confidence"]
    loss = [of.task().curve(of.task().link(p), y)[0], 1 - of.task().scores(p, y)][1]
    assert scored == pytest.approx(-np.log(loss))
    assert scored[0] > scored[1]
    with pytest.raises(UsageError, match=f"the task is {task}"):
        audit(folder / method, tmp_path / "b", answers="label")


@pytest.mark.parametrize("chain", ["quantity"], indirect=True)
def test_quantiles_are_predicted_exported_and_drawn(chain, tmp_path):
    _, folder = chain
    word = "quantile:0.1,0.5,0.9"
    import_data(folder / "quantity.csv", tmp_path / "data", client="who", label="y", task=word, unit="EUR")
    partition(tmp_path / "data", tmp_path / "p")
    train_global(tmp_path / "p", tmp_path / "g", **SETTINGS)
    store = build_datastore(extract(tmp_path / "g", tmp_path / "em"), tmp_path / "ds")
    run = personalize("knn-per", store, tmp_path / "knn", options={"k": 5}).path
    predicted = predict(run, folder / "quantity.csv", client="c1", coverage=0.8)
    names = ["prediction(0.1)", "prediction(0.5)", "prediction(0.9)"]
    row = predicted.rows()[0]
    assert [*row] == ["sample", *names, "low", "high"]
    with h5py.File(run / "predictions.h5") as file:
        first, last = file["validation/offsets"][1:3]
        known, y = file["validation/p"][first:last].astype(float), file["validation/y"][first:last]
    outside = np.sort(np.maximum(known[:, 0] - y, y - known[:, 2]))  # conformalized quantiles
    moved = outside[int(np.ceil((len(y) + 1) * 0.8)) - 1]
    ends = float(predicted.p[0, 0]) - moved, float(predicted.p[0, 2]) + moved
    assert (row["low"], row["high"]) == pytest.approx(ends, rel=1e-5)
    export(run, tmp_path / "model", client="c1")
    words = [sys.executable, tmp_path / "model" / "reader.py", tmp_path / "model", folder / "quantity.csv"]
    heading, *lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert heading == ",".join(["sample", *names])
    shown = np.array([[float(word) for word in line.split(",")[1:]] for line in lines])
    assert shown == pytest.approx(predicted.p, rel=1e-5)
    artifact = open_artifact(evaluate([run], tmp_path / "e").path)
    comparison = read_comparison(artifact)
    charts = page_charts.draw(comparison, page_runs.read(comparison, lineage.trace(artifact)))
    drawn = next(chart for chart in charts if chart.key == "predicted").spec["layer"][1]["data"]["values"]
    with h5py.File(run / "predictions.h5") as file:
        assert [row["predicted"] for row in drawn] == pytest.approx(file["test/p"][:, 1], rel=1e-4)  # the median
    with pytest.raises(UnsuitedError, match="no rule that pools predictions of the task quantile"):
        stack([run, personalize("fedavg", tmp_path / "p", tmp_path / "f", **SETTINGS)], tmp_path / "s")
