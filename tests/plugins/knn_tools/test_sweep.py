"""``pfl sweep`` gives every client the result of the chain of commands that it replaces."""

from __future__ import annotations

import csv
import json
from itertools import pairwise

import numpy as np
import pytest

from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import embeddings, predictions
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.build_datastore import build_datastore
from pflcli.commands.extract import extract
from pflcli.commands.partition import partition
from pflcli.commands.personalize import personalize
from pflcli.commands.train_global import train_global
from pflcli.core import scores
from pflcli.core.errors import InputError, UsageError
from pflcli.plugins.knn_tools.sweep import TUNED, sweep

GRID = {"capacity": (0.4, 1.0), "k": (3, 10), "sigma": (0.5,), "weight": (0.0, 0.7)}


def read_table(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def sweep_folder(small, tmp_path_factory):
    at = tmp_path_factory.mktemp("sweep") / "s"
    sweep(small.e, at, **GRID)
    return at


def run_command_chain(small, tmp_path, capacity, k, weight):
    """Accuracy and lambda of each client by the commands themselves."""
    build_datastore(small.e, tmp_path / "d", capacity=capacity)
    options = {"k": k, "sigma": 0.5, "cross_validate": 0, **({} if weight == TUNED else {"weight": weight})}
    personalize("knn-per", tmp_path / "d", tmp_path / "p", options=options)
    artifact = open_artifact(tmp_path / "p")
    answers = predictions.read(artifact, "test")
    right = scores.correct(answers.parts["p"], answers.y)
    per_client = [right[a:b].mean() if b > a else np.nan for a, b in pairwise(answers.offsets)]
    return np.asarray(per_client), np.diff(answers.offsets), predictions.read_tuned(artifact)["lambda"]


@pytest.mark.parametrize("capacity", GRID["capacity"])
@pytest.mark.parametrize("k", GRID["k"])
@pytest.mark.parametrize("weight", [TUNED, 0.0, 0.7])
def test_sweep_row_equals_the_chain_of_single_commands(small, sweep_folder, tmp_path, capacity, k, weight):
    accuracy, n, chosen = run_command_chain(small, tmp_path, capacity, k, weight)

    def is_point(row):
        return (float(row["capacity"]), int(row["k"])) == (capacity, k)

    (row,) = [
        r
        for r in read_table(sweep_folder / "table.csv")
        if is_point(r) and r["lambda"] == (weight if weight == TUNED else f"{weight:g}")
    ]
    assert float(row["accuracy"]) == pytest.approx(scores.weighted_mean(accuracy, n), abs=1e-6)
    assert float(row["accuracy_mean"]) == pytest.approx(np.nanmean(accuracy), abs=1e-6)
    assert float(row["bottom_decile"]) == pytest.approx(scores.bottom_decile(accuracy), abs=1e-6)
    assert float(row["worst"]) == pytest.approx(np.nanmin(accuracy), abs=1e-6)
    if weight == TUNED:
        client_rows = [r for r in read_table(sweep_folder / "clients.csv") if is_point(r)]
        np.testing.assert_allclose([float(r["accuracy"]) for r in client_rows], accuracy, atol=1e-6)
        assert [float(r["lambda"]) for r in client_rows] == chosen.tolist()
        assert [int(r["n_test"]) for r in client_rows] == n.tolist()
        assert [r["name"] for r in client_rows] == list(codebook.read(open_artifact(small.e)).clients)
        sizes = np.diff(embeddings.read(open_artifact(small.e))["train"].offsets)
        assert [int(r["n_train"]) for r in client_rows] == np.ceil(capacity * sizes).tolist()


@pytest.mark.parametrize(("representation", "distance"), [("features", "cosine"), ("logits", "euclidean")])
def test_a_row_in_another_space_is_the_chain_of_commands(small, tmp_path, representation, distance):
    space = {"representation": representation, "distance": distance}
    sweep(small.e, tmp_path / "s", **{**GRID, "capacity": 1.0, "k": 3}, **space)
    build_datastore(small.e, tmp_path / "d")
    personalize(
        "knn-per-extended", tmp_path / "d", tmp_path / "p", options={"k": 3, "sigma": 0.5, "cross_validate": 0, **space}
    )
    artifact = open_artifact(tmp_path / "p")
    answers = predictions.read(artifact, "test")
    right = scores.correct(answers.parts["p"], answers.y)
    [row] = [row for row in read_table(tmp_path / "s" / "table.csv") if row["lambda"] == TUNED]
    assert float(row["accuracy"]) == pytest.approx(right.mean(), abs=1e-6)
    swept = [float(row["lambda"]) for row in read_table(tmp_path / "s" / "clients.csv")]
    np.testing.assert_allclose(swept, predictions.read_tuned(artifact)["lambda"])
    with pytest.raises(UsageError, match="unknown"):
        sweep(small.e, tmp_path / "t", distance="cosin")


def test_sweep_refuses_logits_of_the_outputs_of_another_layer(small, tmp_path):
    extract(small.b, tmp_path / "e", layer="body.2")
    with pytest.raises(InputError, match=r"outputs of the layer body\.2"):
        sweep(tmp_path / "e", tmp_path / "s", representation="logits")


def test_sweep_with_capacity_0_equals_the_global_model(small, tmp_path):
    sweep(small.e, tmp_path / "s", **{"capacity": "0", "k": "5", "weight": "0,0.5,1"})
    part = embeddings.read(open_artifact(small.e))["test"]
    expected = (part.logits.argmax(axis=1) == part.y).mean()
    rows = read_table(tmp_path / "s" / "table.csv")
    assert [row["lambda"] for row in rows] == ["0", "0.5", "1", "tuned"]
    assert [float(row["accuracy"]) for row in rows] == pytest.approx([expected] * 4, abs=1e-6)


def test_sweep_grid_ignores_order_and_duplicates(small, sweep_folder, tmp_path):
    grid = {"capacity": "1,0.4,1", "k": "10,3", "sigma": [0.5], "weight": "0.7,0"}
    assert sweep(small.e, sweep_folder, **grid).decision == "up to date"


@pytest.mark.usefixtures("drawn_pictures")
def test_sweep_gives_the_same_bytes_for_any_number_of_threads(small, sweep_folder, tmp_path):
    from pflcli.core.execution import Execution

    sweep(small.e, tmp_path / "s", **GRID, execution=Execution(threads=3))
    for name in open_artifact(sweep_folder).manifest.files:
        assert (tmp_path / "s" / name).read_bytes() == (sweep_folder / name).read_bytes(), name


def test_sweep_describes_every_metric_and_reports_the_best_on_validation(sweep_folder):
    metrics = json.loads((sweep_folder / "metrics.json").read_text())
    assert len(metrics["rows"]) == 2 * 2 * 1 * 3
    assert metrics["clients"] == 6
    assert set(metrics["metrics"]) == set(metrics["rows"][0]) - {"capacity", "k", "sigma", "lambda"}
    best = open_artifact(sweep_folder).manifest.summary["best_on_validation"]
    tuned = [row for row in metrics["rows"] if row["lambda"] == "tuned"]
    top = max(row["validation_accuracy"] for row in tuned)
    (best_row,) = [row for row in tuned if {axis: row[axis] for axis in best} == best]
    assert best_row["validation_accuracy"] == top


@pytest.mark.parametrize("plot", ["capacity", "k", "sigma", "lambda"])
def test_sweep_plots_every_axis(small, tmp_path, plot):
    sweep(small.e, tmp_path / "s", **{"capacity": "0.5,1", "k": "5", "sigma": "0.1,1,1000"}, plot=plot)
    assert (tmp_path / "s" / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_sweep_scores_unseen_clients_separately(tmp_path):
    partition("writers", tmp_path / "p", clients=6, new_clients=0.3)
    train_global(tmp_path / "p", tmp_path / "b", settings={"model": "mlp", "rounds": 1})
    extract(tmp_path / "b", tmp_path / "e")
    sweep(tmp_path / "e", tmp_path / "s", **{"capacity": "1", "k": "5", "weight": "0"})
    rows = [r for r in read_table(tmp_path / "s" / "clients.csv") if r["unseen"] == "1"]
    assert len(rows) == 2
    n = np.asarray([int(r["n_test"]) for r in rows])
    expected = np.average([float(r["accuracy"]) for r in rows], weights=n)
    assert float(read_table(tmp_path / "s" / "table.csv")[-1]["accuracy_unseen"]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("grid", "plot", "words"),
    [
        ({"capacity": "0,1.5"}, None, "capacity=0,1.5"),
        ({"k": "0"}, None, "k=0"),
        ({"k": "3,few"}, None, "k=3,few"),
        ({"sigma": "0"}, None, "sigma=0"),
        ({"weight": "nan"}, None, "weight=nan"),
        ({"weight": ","}, None, "weight is empty"),
        ({}, "capacty", "unknown --plot 'capacty'"),
    ],
)
def test_sweep_refuses_invalid_grids(small, tmp_path, grid, plot, words):
    with pytest.raises(UsageError, match=words):
        sweep(small.e, tmp_path / "s", **grid, plot=plot)
    assert not (tmp_path / "s").exists()
