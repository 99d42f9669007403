"""Scores of quantities and counts in files, computed again by NumPy alone, in the unit of the labels."""

from __future__ import annotations

import csv
import json

import h5py
import numpy as np
import pytest

from pflcli import compare, import_data, partition

CLIENTS, SAMPLES, QUANTILES = 6, 50, (0.2, 0.5, 0.9)
METHODS = ("fedavg", "ditto", "alone", "constant")
SETTINGS = {"model": "mlp", "rounds": 4, "participation": 1.0, "batch_size": 10, "lr": 0.1}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Return comparisons of a quantity in grams and of counts, under two seeds and three metrics each."""
    folder = tmp_path_factory.mktemp("numbers")
    draw = np.random.default_rng(0)
    x, client = draw.normal(size=(CLIENTS * SAMPLES, 3)), np.repeat(np.arange(CLIENTS), SAMPLES)
    line = 0.5 * x[:, 0] + (client % 2) * x[:, 1]
    weight, noise = np.round(3200 + 400 * line, 1), draw.normal(size=len(line))
    labels = {"weight": weight, "visits": draw.poisson(np.exp(1 + 0.5 * line)), "sugar": weight + np.round(99 * noise)}
    for name, task, metric in (
        ("weight", "quantity", "rmse,mae,r2"),
        ("visits", "count", "poisson_deviance,mae,rmse"),
        ("sugar", "quantile:0.2,0.5,0.9", "quantile_loss,mae,rmse"),
    ):
        rows = [
            f"c{c},{','.join(map(str, np.round(row, 4)))},{y}"
            for c, row, y in zip(client, x, labels[name], strict=True)
        ]
        (folder / f"{name}.csv").write_text("\n".join(["who,a,b,c," + name, *rows]) + "\n", encoding="utf-8")
        unit = {} if task == "count" else {"unit": "g"}
        import_data(folder / f"{name}.csv", folder / name, client="who", label=name, task=task, **unit)
        partition(folder / name, folder / f"{name}-p")
        compare(
            folder / f"{name}-p",
            folder / task.partition(":")[0],
            methods=METHODS,
            metrics=metric.split(","),
            seeds=(0, 1),
            **({"coverage": 0.7} if name == "sugar" else {}),
            **SETTINGS,
        )
    return folder


def score(name, p, y):
    """Return a metric of predictions (n, C), written out; the median is the second of three quantiles."""
    if name == "quantile_loss":
        each = [
            [
                q * (label - number) if label > number else (1 - q) * (number - label)
                for q, number in zip(QUANTILES, row, strict=True)
            ]
            for row, label in zip(p, y, strict=True)
        ]
        return np.mean(each)
    p = p[:, p.shape[1] // 2]
    error = p - y
    if name == "rmse":
        return np.sqrt(np.mean(error**2))
    if name == "mae":
        return np.mean(np.abs(error))
    if name == "r2":
        return 1 - np.sum(error**2) / np.sum((y - y.mean()) ** 2)
    each = [2 * (n * np.log(n / mu) - (n - mu)) if n else 2 * mu for n, mu in zip(y, p, strict=True)]
    return np.mean(each)


@pytest.mark.parametrize(
    ("task", "metrics"),
    [
        ("quantity", ("rmse", "mae", "r2")),
        ("count", ("poisson_deviance", "mae", "rmse")),
        ("quantile", ("quantile_loss", "mae", "rmse")),
    ],
)
def test_stored_scores_are_those_of_the_stored_predictions(compared, task, metrics):
    table = json.loads((compared / task / "comparison" / "metrics.json").read_text())
    known = {row["label"]: row["metrics"] for row in table["methods"]}
    assert {*METHODS} <= known.keys()
    with (compared / task / "comparison" / "clients.csv").open(newline="", encoding="utf-8") as file:
        stored = {(row["method"], int(row["seed"]), int(row["client"])): row for row in csv.DictReader(file)}
    worst = {"r2": min}
    for method in METHODS:
        by_seed = {name: [] for name in metrics}
        for seed in (0, 1):
            with h5py.File(compared / task / f"seed-{seed}" / method / "predictions.h5") as file:
                p, y, offsets = (file[f"test/{key}"][...] for key in ("p", "y", "offsets"))
            p, n = p.astype(float), np.diff(offsets)
            assert y.dtype == np.float64
            for name in metrics:
                spans = [slice(*offsets[client : client + 2]) for client in range(CLIENTS)]
                by_client = [score(name, p[span], y[span]) for span in spans]
                for client, value in enumerate(by_client):
                    assert float(stored[method, seed, client][name]) == pytest.approx(value, rel=1e-5)
                by_seed[name].append((np.average(by_client, weights=n), worst.get(name, max)(by_client)))
        for name in metrics:
            mean, far = np.mean(by_seed[name], axis=0)
            assert known[method][name]["value"] == pytest.approx(mean, rel=1e-9)
            assert known[method][f"{name}_worst"]["value"] == pytest.approx(far, rel=1e-9)
    first = metrics[0]
    gain = known["fedavg"][first]["value"] - known["ditto"][first]["value"]
    assert known["ditto"]["gain"]["value"] == pytest.approx(gain, rel=1e-9)
    assert known["ditto"]["gain"]["value"] > 0
    part = known["ditto"]["gain_relative"]
    before = known["fedavg"][first]["value"]
    assert part["value"] == pytest.approx(gain / before)
    assert part["interval"] == pytest.approx([bound / before for bound in known["ditto"]["gain"]["interval"]])
    shown = (compared / task / "comparison" / "table.md").read_text(encoding="utf-8")
    assert f"| +{100 * part['value']:.1f} [{100 * part['interval'][0]:+.1f}, " in shown
    assert f"({100 * part['value']:+.1f} %) [" in shown[shown.index("\n\n") :], "the conclusion says it too"
    with (compared / task / "comparison" / "table.csv").open(newline="", encoding="utf-8") as file:
        (row,) = (row for row in csv.DictReader(file) if row["method"] == "ditto")
    assert float(row["gain_relative_low"]) == pytest.approx(part["interval"][0], abs=1e-4)


def test_tables_and_the_page_name_the_unit(compared, pfl):
    table = (compared / "quantity" / "comparison" / "table.md").read_text(encoding="utf-8")
    assert "| RMSE (g) |" in table
    assert "| gain (g) |" in table
    assert "MAE (g)" in table
    assert "R² (g)" not in table
    cells = [line.split("|")[3].split("±")[0].strip() for line in table.splitlines()[2:] if line.startswith("| ")]
    assert max(len(cell.replace(".", "")) for cell in cells) == 4, "the largest has four digits"
    assert " g [" in (conclusion := table[table.index("\n\n") :]), conclusion
    assert json.loads((compared / "quantity" / "comparison" / "metrics.json").read_text())["unit"] == "g"
    assert pfl("report", compared / "quantity", "-o", compared / "page.html").code == 0
    page = (compared / "page.html").read_text(encoding="utf-8")
    assert "RMSE (g)" in page
    shown = pfl("show", compared / "quantity" / "seed-0" / "ditto").out
    assert "test RMSE: " in shown
    assert " g of 10 test samples" in shown
    assert "(g)" not in (compared / "count" / "comparison" / "table.md").read_text(encoding="utf-8")


def test_constant_is_the_mean_of_training_labels_in_their_unit(compared):
    with h5py.File(compared / "weight-p" / "samples.h5") as file:
        y, bounds = file["y"][...], file["offsets"][...]
    with h5py.File(compared / "quantity" / "seed-0" / "constant" / "predictions.h5") as file:
        p, offsets = file["test/p"][...], file["test/offsets"][...]
    for client in range(CLIENTS):
        np.testing.assert_allclose(
            p[offsets[client] : offsets[client + 1], 0],
            y[bounds[3 * client] : bounds[3 * client + 1]].mean(),
            rtol=1e-6,
        )


def test_intervals_of_quantiles_are_those_of_romano(compared):
    """Each end of the interval from 0.2 to 0.9 moves by one rank of its distances from validation labels."""
    with (compared / "quantile" / "comparison" / "sets_clients.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if (row["method"], row["seed"]) == ("ditto", "0")]
    with h5py.File(compared / "quantile" / "seed-0" / "ditto" / "predictions.h5") as file:
        read = {
            name: {key: file[f"{name}/{key}"][...] for key in ("p", "y", "offsets")} for name in ("validation", "test")
        }
    assert len(rows) == CLIENTS
    below = 0
    for client, row in enumerate(rows):
        spans = {name: slice(*each["offsets"][client : client + 2]) for name, each in read.items()}
        (low, high), y = (
            read["validation"]["p"][spans["validation"]][:, [0, 2]].T,
            read["validation"]["y"][spans["validation"]],
        )
        distance = np.sort(np.maximum(low.astype(float) - y, y - high.astype(float)))
        moved = distance[int(np.ceil((len(y) + 1) * 0.7)) - 1]
        assert float(row["threshold_own"]) == pytest.approx(moved, rel=1e-5, abs=1e-4)
        (low, high), y = read["test"]["p"][spans["test"]][:, [0, 2]].T.astype(float), read["test"]["y"][spans["test"]]
        covered = np.mean((low - moved <= y) & (y <= high + moved))
        assert float(row["coverage_own"]) == pytest.approx(covered, abs=1e-5)
        assert float(row["set_size_own"]) == pytest.approx(np.mean(np.maximum(high - low + 2 * moved, 0)), rel=1e-4)
        below += moved < 0
    assert below, "an interval that covers too much becomes shorter"


def test_conclusions_compare_with_constant_and_with_training_alone(tmp_path):
    """Of clients with levels of their own, one model for all is no better than their means; alone, lines fit."""
    draw = np.random.default_rng(0)
    x, client = draw.normal(size=(300, 3)), np.repeat(np.arange(6), 50)
    y = 1000.0 * client + 50 * x[:, 0] + draw.normal(size=300)
    np.savez(tmp_path / "d.npz", x=x, y=y, owner=client)
    import_data(tmp_path / "d.npz", tmp_path / "d", task="quantity", unit="g")
    partition(tmp_path / "d", tmp_path / "p")
    compare(tmp_path / "p", tmp_path / "c", methods=("fedavg", "ditto", "alone"), seeds=(0, 1), **SETTINGS)
    table = json.loads((tmp_path / "c" / "comparison" / "metrics.json").read_text())
    references = {row["label"] for row in table["methods"] if row.get("reference")}
    assert {"constant", "alone"} <= references
    sentence = table["conclusion"]["sentence"]
    assert sentence.startswith("Training alone is better here by RMSE: ditto, the best method, has -"), sentence
    assert " g [" in sentence
    assert "but fedavg (" in sentence
    assert "is not better than each client's own labels, whatever the features (constant, " in sentence
