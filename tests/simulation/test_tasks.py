"""Quantities and counts go through ``simulate`` and ``table``; what does not fit them is refused."""

from __future__ import annotations

import numpy as np
import pytest

from pflcli import Federation, simulate, table
from pflcli.core.engine.tasks.quantity import Quantity
from pflcli.core.errors import InputError, UnsuitedError, UsageError

SETTINGS = {"model": "mlp", "batch_size": 16, "lr": 0.05, "participation": 1.0, "quiet": True}


def make_quantities(task="quantity", slope=30.0, **options):
    """Return clients whose labels are linear in the features, with a slope of their own."""
    draw = np.random.default_rng(0)
    client = np.repeat(np.arange(6), 60)
    x = draw.normal(size=(360, 4)).astype(np.float32)
    y = 200 + slope * (0.5 * x[:, 0] + (client % 2) * x[:, 1])
    return Federation.from_arrays(x, y, client, task=task, **options)


def make_counts():
    """Return clients whose labels follow Poisson's distribution, with rates of their own, and these rates (n,)."""
    draw = np.random.default_rng(0)
    client = np.repeat(np.arange(6), 200)
    x = draw.normal(size=(1200, 3)).astype(np.float32)
    rate = np.exp(1.5 + 0.4 * x[:, 0] + (2 * (client % 2) - 1) * 0.8 * x[:, 1])
    return Federation.from_arrays(x, draw.poisson(rate), client, task="count"), rate


def measure(result, error=np.abs):
    """Return the mean error of test predictions."""
    found = result.predictions["test"]
    return float(error(found.p[:, 0].astype(float) - found.y).mean())


def test_quantities_go_through_simulate_and_table_in_their_unit():
    federation = make_quantities(unit="EUR")
    assert [*federation.describe().columns] == ["train", "validation", "test", "mean", "sd"]
    results = {name: simulate(name, federation, rounds=30, eval_every=1, **SETTINGS) for name in ("fedavg", "ditto")}
    frame = table(results, metric=("rmse", "mae", "r2"))
    assert frame.loc["ditto", "mae"] == pytest.approx(measure(results["ditto"]), rel=1e-6)
    found = results["ditto"].predictions["test"]
    errors = (found.p[:, 0].astype(float) - found.y) ** 2
    by_client = [np.sqrt(errors[found.client == client].mean()) for client in range(6)]
    assert frame.loc["ditto", "rmse"] == pytest.approx(np.mean(by_client), rel=1e-9)  # clients have 12 samples each
    spread = [errors[found.client == c].mean() / found.y[found.client == c].var() for c in range(6)]
    assert frame.loc["ditto", "r2"] == pytest.approx(1 - np.mean(spread), rel=1e-9)
    assert frame.index[0] == "ditto"
    assert frame.loc["ditto", "rmse"] < 0.4 * frame.loc["fedavg", "rmse"]
    assert frame.loc["ditto", "gain"] == pytest.approx(frame.loc["fedavg", "rmse"] - frame.loc["ditto", "rmse"])
    assert "accuracy" not in frame
    assert any("lower the RMSE" in note for note in frame.attrs["notes"])
    with pytest.raises(UsageError, match="log_loss is a metric of classes, and the task is quantity"):
        table(results, metric="log_loss")
    with pytest.raises(UsageError, match="poisson_deviance is a metric of count, and the task is quantity"):
        table(results, metric="poisson_deviance")


@pytest.mark.parametrize("loss", ["squared", "absolute", "huber"])
def test_no_loss_depends_on_the_unit(loss):
    small, large = (make_quantities(f"quantity:{loss}", slope) for slope in (30.0, 30.0))
    large = Federation.from_arrays(large.x, 1000 * large.y + 5, np.repeat(np.arange(6), 60), task=f"quantity:{loss}")
    small = Federation.from_arrays(small.x, small.y, np.repeat(np.arange(6), 60), task=f"quantity:{loss}")
    first, second = (simulate("fedavg", each, rounds=5, **SETTINGS).predictions["test"].p for each in (small, large))
    np.testing.assert_allclose(second, 1000 * first + 5, rtol=1e-3)


def test_losses_are_those_of_their_formulas():
    import torch

    outputs, y = torch.tensor([[0.5], [3.0], [-0.25]]), torch.tensor([12.0, 10.0, 10.0], dtype=torch.float64)
    error = np.asarray([0.5 - 1, 3.0, -0.25])
    expected = {
        "squared": error**2,
        "absolute": np.abs(error),
        "huber": np.where(np.abs(error) < 1, error**2 / 2, np.abs(error) - 0.5),
    }
    for loss, values in expected.items():
        task = Quantity(loss=loss, mean=10.0, deviation=2.0)
        np.testing.assert_allclose(task.losses(outputs, y).numpy(), values, rtol=1e-6)
        given = outputs.clone().requires_grad_()
        task.losses(given, y).mean().backward()
        weight = torch.full((1, 3), 1 / 3)
        losses, grad = task.mean_losses(outputs[None], y[None], weight, 2.0)
        np.testing.assert_allclose(losses.numpy(), values.mean(), rtol=1e-6)
        np.testing.assert_allclose(grad[0].numpy(), 2 * given.grad.numpy(), rtol=1e-6)


def test_counts_are_predicted_better_than_by_their_mean_and_no_better_than_their_rates_allow():
    federation, rate = make_counts()
    result = simulate("ditto", federation, rounds=40, **{**SETTINGS, "lr": 0.1})
    found, shown = (
        result.predictions["test"],
        table({"fedavg": simulate("fedavg", federation, rounds=40, **SETTINGS), "ditto": result}),
    )
    y, p, known = (
        found.y,
        found.p[:, 0].astype(float),
        rate[federation.sample[federation.rows_of(federation.clients, "test")]],
    )

    def deviance(expected):
        return 2 * np.mean(np.where(y > 0, y * np.log(np.maximum(y, 1) / expected), 0) - (y - expected))

    assert shown.loc["ditto", "poisson_deviance"] == pytest.approx(deviance(p), rel=1e-6)
    assert deviance(known) < deviance(p) < 0.6 * deviance(np.full(len(y), federation.task.mean))
    assert shown.index[0] == "ditto"


def test_constant_predicts_each_clients_mean_training_label():
    federation = make_quantities()
    found = simulate("constant", federation, **SETTINGS).predictions["test"]
    for client in federation.clients:
        mean = federation.labels_of(np.asarray([client]), "train").mean()
        np.testing.assert_allclose(found.p[found.client == client, 0], mean, rtol=1e-6)


def test_a_result_has_the_score_of_its_task_and_refuses_accuracy():
    federation = make_quantities(unit="EUR")
    result = simulate("fedavg", federation, rounds=1, **SETTINGS)
    test = result.predictions["test"]
    explained = 1 - measure(result, np.square) / federation.task.deviation**2
    assert result.score() == pytest.approx(explained, rel=1e-6)
    assert f"R²={explained:.4f}" in repr(result)
    assert repr(test) == "Predictions(samples=72, quantity=1, parts=['p'])"
    for ask in (result.accuracy, result.accuracies, lambda: test.correct):
        with pytest.raises(UnsuitedError, match="predictions of a quantity are not right or wrong"):
            ask()


def test_the_best_round_is_that_of_the_highest_score_of_the_task():
    result = simulate("fedavg", make_quantities(), rounds=8, eval_every=1, report="best", **{**SETTINGS, "lr": 0.3})
    scores = result.rounds["validation_accuracy"]
    assert scores.max() < 1
    assert scores.nunique() == len(scores)
    best = simulate("fedavg", make_quantities(), rounds=int(scores.idxmax()), **{**SETTINGS, "lr": 0.3})
    np.testing.assert_array_equal(result.predictions["test"].p, best.predictions["test"].p)


def test_new_clients_do_not_scale_the_labels_of_others():
    draw = np.random.default_rng(0)
    x, y, client = draw.normal(size=(90, 2)), draw.normal(size=90), np.repeat(["a", "b", "late"], 30)
    far = np.where(client == "late", y + 1000, y)
    tasks = [Federation.from_arrays(x, labels, client, task="quantity", new_clients="late").task for labels in (y, far)]
    assert tasks[0] == tasks[1]


def test_labels_and_methods_that_do_not_fit_a_task_are_refused():
    x, y, client = np.zeros((4, 2)), np.asarray([1.0, np.nan, 2.0, 3.0]), ["a", "a", "b", "b"]
    quantity = {"task": "quantity"}
    with pytest.raises(InputError, match="y of row 1 is missing"):
        Federation.from_arrays(x, y, client, **quantity)
    with pytest.raises(InputError, match="the label inf of row 1 is not a finite number"):
        Federation.from_arrays(x, np.nan_to_num(y, nan=np.inf), client, **quantity)
    with pytest.raises(InputError, match="labels of the task quantity are numbers"):
        Federation.from_arrays(x, ["1", "2", "three", "4"], client, **quantity)
    with pytest.raises(InputError, match=r"the label 1\.5 of row 0 is not a whole number from 0"):
        Federation.from_arrays(x, [1.5, 2, 3, 4], client, task="count")
    with pytest.raises(InputError, match=r"y has shape \(4, 2\), not \(n,\)"):
        Federation.from_arrays(x, x, client, **quantity)
    with pytest.raises(UsageError, match="unknown task 'quantities'"):
        Federation.from_arrays(x, y, client, task="quantities")
    with pytest.raises(UsageError, match="unknown loss 'hubert'"):
        Federation.from_arrays(x, y, client, task="quantity:hubert")
    with pytest.raises(UsageError, match="count has none"):
        Federation.from_arrays(x, y, client, task="count:huber")
    with pytest.raises(UsageError, match="task is 3, not a task"):
        Federation.from_arrays(x, y, client, task=3)
    with pytest.raises(UsageError, match="task and classes both say"):
        Federation.from_arrays(x, np.ones(4), client, task=Quantity(), classes=[1])
    with pytest.raises(UnsuitedError, match="fedproto learns classes, and the task is quantity"):
        simulate("fedproto", make_quantities(), **SETTINGS)
    with pytest.raises(UnsuitedError, match="there are no classes to predict: the task is quantity"):
        _ = make_quantities().classes
