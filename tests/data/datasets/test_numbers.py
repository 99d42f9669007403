"""Datasets of quantities and counts: generated ones, whose best error is known, and schools against published facts."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from scipy import stats

import pflcli
from pflcli import Federation, simulate
from pflcli.artifacts.reader import open_artifact
from pflcli.commands.partition import partition
from pflcli.core import tasks
from pflcli.core.errors import UsageError
from pflcli.core.metrics import catalogue
from pflcli.data.datasets import generated, schools

HOW = {"participation": 1.0, "batch_size": 16, "quiet": True}
METRIC = {"quantity": "rmse", "count": "poisson_deviance"}


def measure(task, p, y):
    """The error of predictions (n,) of all samples together, in the metric of the task."""
    if task == "quantity":
        return np.sqrt(np.mean((p - y) ** 2))
    return np.mean(2 * (np.where(y > 0, y * np.log(np.maximum(y, 1) / p), 0) - (y - p)))


@pytest.mark.parametrize("task", ["quantity", "count"])
@pytest.mark.parametrize("draw", [0, 1])
def test_best_predictions_have_the_best_error(task, draw):
    cfg = generated.Config(task=task, clients=40, samples=500, draw=draw)
    samples = generated.load(None, cfg=cfg)
    samples.check("generated")
    best, y = generated.compute_best_predictions(cfg), samples.y
    assert measure(task, best, y) == pytest.approx(generated.compute_best_error(cfg), rel=0.02)
    assert measure(task, 1.1 * best, y) > measure(task, best, y)
    assert tasks.find(task).metrics[0] == METRIC[task]
    assert METRIC[task] in catalogue.METRICS


def test_the_best_error_of_counts_is_the_expected_deviance_by_scipy():
    cfg = generated.Config(task="count", clients=3, samples=4)
    k = np.arange(3000)
    expected = [
        (stats.poisson.pmf(k, rate) * 2 * (np.where(k > 0, k * np.log(np.maximum(k, 1) / rate), 0) - k + rate)).sum()
        for rate in generated.compute_best_predictions(cfg)
    ]
    assert generated.compute_best_error(cfg) == pytest.approx(np.mean(expected), rel=1e-6)


def test_clients_differ_by_levels_of_the_stated_deviation():
    cfg = generated.Config(clients=400, samples=20, level=2.0, noise=0.25)
    samples, best = generated.load(None, cfg=cfg), generated.compute_best_predictions(cfg)
    slope = np.linalg.lstsq(samples.x.astype(float), best, rcond=None)[0]
    assert np.linalg.norm(slope) == pytest.approx(1, rel=0.05)
    levels = np.unique((best - samples.x.astype(float) @ [w / np.sqrt(5) for w in (1, -1, 1, -1, 1)]).round(6))
    assert len(levels) == len(set(samples.owner)) == 400
    assert levels.std() == pytest.approx(2.0, rel=0.1)
    assert np.std(samples.y - best) == pytest.approx(0.25, rel=0.05)
    with pytest.raises(UsageError, match="reads no files"):
        generated.load(Path())


@pytest.mark.parametrize(
    ("task", "methods"),
    [("quantity", ("ditto", "gaussian-head", "pfedgp", "knn-peers")), ("count", ("ditto", "fedper"))],
)
def test_personalized_methods_come_nearer_to_the_best_error_than_fedavg(task, methods):
    federation = Federation.from_dataset("generated", options={"task": task})
    cfg = generated.Config(task=task)
    test = federation.rows_of(federation.clients, "test")
    y, best = federation.y.numpy()[test], generated.compute_best_predictions(cfg)[federation.sample[test]]
    least = measure(task, best, y)
    assert least == pytest.approx(generated.compute_best_error(cfg), rel=0.15)  # of 240 samples

    def reach(method):
        p = simulate(method, federation, model="mlp", rounds=15, lr=0.02, **HOW).predictions["test"].p[:, 0]
        return measure(task, p.astype(float), y)

    shared = reach("fedavg")
    assert shared > 1.3 * least  # it knows no levels
    for method in methods:
        error = reach(method)
        assert least < error < 0.8 * shared, method
        if method == "gaussian-head":
            assert error < 1.3 * least


def test_schools_have_the_published_numbers():
    """Raudenbush & Bryk (2002), chapter 4: students, schools, and the mean, deviation and variance within schools."""
    samples = schools.load(None)
    samples.check("schools")
    assert samples.x.shape == (7185, 8)
    names, size = np.unique(samples.owner, return_counts=True)
    assert (len(names), size.min(), size.max()) == (160, 14, 67)
    assert samples.y.mean() == pytest.approx(12.748, abs=5e-4)
    assert samples.y.std(ddof=1) == pytest.approx(6.878, abs=5e-4)
    within = sum(
        ((samples.y[samples.owner == each] - samples.y[samples.owner == each].mean()) ** 2).sum() for each in names
    )
    assert within / (7185 - 160) == pytest.approx(39.15, abs=0.02)
    assert samples.x[:, 4].reshape(-1)[np.unique(samples.owner, return_index=True)[1]].sum() == 70  # Catholic schools
    folder = Path(pflcli.__file__).parent / "data" / "datasets"
    assert (folder / "schools.npz").stat().st_size < 200_000
    assert "public domain" in (folder / "schools.LICENSE.md").read_text(encoding="utf-8")
    assert schools.load(None, cfg=schools.Config(features="student")).features == ("ses", "minority", "female")


def test_partition_of_schools_has_the_task_the_unit_and_standardized_features(tmp_path):
    partition("schools", tmp_path / "p")
    opened = open_artifact(tmp_path / "p", "partition")
    assert opened.manifest.summary["task"]["kind"] == "quantity"
    assert opened.manifest.summary["task"]["fields"]["unit"] == "points"
    with h5py.File(tmp_path / "p" / "samples.h5") as file:
        ends, x = file["offsets"][...], file["x"][...].astype(float)
    train = np.concatenate([x[ends[3 * client] : ends[3 * client + 1]] for client in range(160)])
    np.testing.assert_allclose(train.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(train.std(axis=0), 1, atol=1e-4)
