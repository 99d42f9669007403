"""Quantiles: losses and gradients by their formulas, predictions that do not cross, references, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pflcli import Federation, simulate, table
from pflcli.core.engine.tasks.quantile import Quantile
from pflcli.core.errors import UsageError
from pflcli.core.knn.stores import Neighbours
from pflcli.methods.knn_per import quantiles_by_distance

SETTINGS = {"model": "mlp", "batch_size": 16, "lr": 0.1, "participation": 1.0, "rounds": 20, "quiet": True}
LEVELS = (0.1, 0.5, 0.9)


def make_clients(task="quantile:0.9,0.1,0.5", unit="EUR"):
    """Return clients whose labels have noise of a deviation that depends on the third feature."""
    draw = np.random.default_rng(0)
    x, client = draw.normal(size=(1200, 4)).astype(np.float32), np.repeat(np.arange(6), 200)
    y = 200 + 30 * (0.5 * x[:, 0] + (client % 2) * x[:, 1]) + (5 + 15 * (x[:, 2] > 0)) * draw.normal(size=1200)
    return Federation.from_arrays(x, y, client, task=task, unit=unit)


def test_losses_and_gradients_are_those_of_their_formulas():
    task = Quantile(2, quantiles=(0.1, 0.9), mean=10.0, deviation=2.0)
    outputs, y = torch.tensor([[0.5, 2.0], [3.0, -1.0], [-0.25, 0.0]]), torch.tensor([12.0, 10.0, 9.0]).double()
    error = np.asarray([[0.5, -1.0], [-3.0, 1.0], [-0.25, -0.5]])
    each = np.where(error >= 0, np.asarray([0.1, 0.9]) * error, np.asarray([0.9, 0.1]) * -error).mean(axis=1)
    np.testing.assert_allclose(task.losses(outputs, y).numpy(), each, rtol=1e-6)
    given = outputs.clone().requires_grad_()
    task.losses(given, y).mean().backward()
    losses, grad = task.mean_losses(outputs[None], y[None], torch.full((1, 3), 1 / 3), 2.0)
    np.testing.assert_allclose(losses.numpy(), each.mean(), rtol=1e-6)
    np.testing.assert_allclose(grad[0].numpy(), 2 * given.grad.numpy(), rtol=1e-6)


def test_predicted_quantiles_ascend_and_have_the_shares_of_labels_below_them():
    federation = make_clients()
    task = federation.task
    assert (task.outputs, task.quantiles, task.unit) == (3, LEVELS, "EUR")
    train = federation.labels_of(federation.clients, "train")
    np.testing.assert_allclose(task.at, np.quantile(train, LEVELS))
    found = simulate("ditto", federation, **SETTINGS).predictions["test"]
    assert (np.diff(found.p, axis=1) >= 0).all()
    assert not (np.diff(task.predict(torch.tensor([[2.0, 1.0, 0.0]]))) < 0).any()
    np.testing.assert_allclose((found.y[:, None] < found.p).mean(axis=0), LEVELS, atol=0.1)
    wide = np.diff(found.p[:, [0, 2]], axis=1)[:, 0]
    noisy = federation.samples(federation.rows_of(federation.clients, "test"))[:, 2].numpy() > 0
    assert wide[noisy].mean() > 1.5 * wide[~noisy].mean()


def test_tables_rank_by_the_quantile_loss_and_errors_are_those_of_the_median():
    federation = make_clients()
    names = ("fedavg", "ditto", "knn-per", "constant", "alone")
    results = {name: simulate(name, federation, **SETTINGS) for name in names}
    frame = table(results, metric=("quantile_loss", "mae"))
    assert [*table(results).columns][1] == "quantile_loss"
    found = results["ditto"].predictions["test"]
    error = found.y[:, None] - found.p.astype(float)
    expected = np.where(error > 0, np.asarray(LEVELS) * error, (np.asarray(LEVELS) - 1) * error).mean()
    assert frame.loc["ditto", "quantile_loss"] == pytest.approx(expected, rel=1e-6)
    assert frame.loc["ditto", "mae"] == pytest.approx(np.abs(error[:, 1]).mean(), rel=1e-6)
    loss = frame["quantile_loss"]
    assert loss["ditto"] < 0.95 * loss["knn-per"] < 0.9 * loss["fedavg"] < 0.8 * loss["constant"]
    assert loss["alone"] < loss["fedavg"], "its lines fit these labels"
    for client in federation.clients:
        own = federation.labels_of(np.asarray([client]), "train")
        constant = results["constant"].predictions["test"]
        np.testing.assert_allclose(constant.p[constant.client == client][0], np.quantile(own, LEVELS), rtol=1e-6)


def test_quantiles_of_neighbours_are_weighted_and_ignore_missing_ones():
    distance = np.asarray([[1.0, 1.0, 1.0, np.inf], [1.0, 2.0, 3.0, 4.0], [np.inf] * 4])
    labels = np.asarray([[5.0, -3.0, 1.0, 99.0], [4.0, 3.0, 2.0, 1.0], [0.0] * 4])
    exponent = np.log(np.asarray([[1.0, 1.0, 1.0, 1.0], [0.6, 0.2, 0.1, 0.1], [1.0] * 4]))
    found = quantiles_by_distance(Neighbours(distance, labels), exponent, (0.1, 0.5, 0.9))
    assert found[:2].tolist() == [[-3, 1, 5], [1, 4, 4]]
    assert np.isnan(found[2]).all()


def test_errors_without_a_median_and_words_that_are_no_quantiles_are_refused():
    result = {"fedavg": simulate("fedavg", make_clients("quantile:0.1,0.9"), **{**SETTINGS, "rounds": 1})}
    assert np.isfinite(table(result).loc["fedavg", "quantile_loss"])
    for name in ("mae", "rmse", "r2"):
        with pytest.raises(UsageError, match=r"those of the median, and the quantiles are 0\.1, 0\.9"):
            table(result, metric=name)
    with pytest.raises(UsageError, match="quantile_loss is a metric of quantile, and the task is quantity"):
        table({"fedavg": simulate("fedavg", make_clients("quantity"), **SETTINGS)}, metric="quantile_loss")
    for word, problem in {
        "quantile": "names no quantiles",
        "quantile:median": "names no quantiles",
        "quantile:0.5,1": "1 is not between 0 and 1",
        "quantile:nan": "nan is not between 0 and 1",
    }.items():
        with pytest.raises(UsageError, match=problem):
            make_clients(word)
