"""Targets that are standardized by client: models learn them, and every stored number is in the target's own unit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pflcli import Federation, simulate, table
from pflcli.core.engine.tasks import ClientScales
from pflcli.core.engine.tasks.quantile import Quantile
from pflcli.core.engine.tasks.quantity import Quantity
from pflcli.core.errors import UsageError

SETTINGS = {"model": "logistic", "batch_size": 10, "lr": 0.05, "participation": 1.0, "rounds": 40, "quiet": True}
NOISE = 0.5


def make_arrays(levels=(0.0, 1000.0), spreads=(1.0, 1.0), samples=100):
    """Return clients whose labels have the same slope, and their own level and unit."""
    draw, clients = np.random.default_rng(0), len(levels)
    owner = np.repeat(np.arange(clients), samples)
    x = draw.normal(size=(clients * samples, 2)).astype(np.float32)
    y = 5 * x[:, 0] + NOISE * draw.normal(size=len(x))
    return x, np.asarray(levels)[owner] + np.asarray(spreads)[owner] * y, owner


def measure_rmse(result, split="test"):
    """Return the RMSE of each client's predictions."""
    found = result.predictions[split]
    errors = (found.p[:, 0].astype(float) - found.y) ** 2
    return np.asarray([errors[found.client == client].mean() ** 0.5 for client in range(found.client.max() + 1)])


def list_training_labels(federation):
    return [federation.labels_of(np.asarray([client]), "train") for client in federation.clients]


def test_clients_of_one_slope_and_other_levels_are_predicted_by_one_model():
    together = Federation.from_arrays(*make_arrays(), task="quantity", unit="EUR")
    apart = together.standardize_target()
    # The model has no way to tell the clients apart: between their levels, it is wrong by half of the difference.
    assert measure_rmse(simulate("fedavg", together, **SETTINGS)).mean() == pytest.approx(500, rel=0.05)
    result = simulate("fedavg", apart, **SETTINGS)
    assert measure_rmse(result).max() < 1.3 * NOISE
    assert result.predictions["test"].y == pytest.approx(together.labels_of(together.clients, "test"), abs=0)
    frame = table({"fedavg": result, "constant": simulate("constant", apart, **SETTINGS)}, metric=("rmse", "mae"))
    assert frame.loc["fedavg", "rmse"] == pytest.approx(measure_rmse(result).mean(), rel=1e-9)
    words = "given each client's mean and deviation of the target"
    assert [note.endswith(": every method") for note in frame.attrs["notes"] if words in note] == [True]
    before = {"fedavg": simulate("fedavg", together, **{**SETTINGS, "rounds": 1})}
    mixed = table({**before, "scaled": result})
    assert [note.endswith(": `scaled`") for note in mixed.attrs["notes"] if words in note] == [True]
    assert not any(words in note for note in table(before).attrs["notes"])


def test_scales_are_those_of_each_clients_training_labels():
    labels = [np.array([1.0, 3.0]), np.array([10.0, 10.0, 16.0]), np.array([7.0]), np.zeros(0), np.full(4, 0.1)]
    scales = ClientScales.fit(Quantity(mean=5.0, deviation=4.0), labels)
    # One label, none, and four that are the same have no deviation: these clients get the numbers of all.
    assert scales.mean.tolist() == [2.0, 12.0, 5.0, 5.0, 5.0]
    assert scales.deviation == pytest.approx([1.0, 8**0.5, 4.0, 4.0, 4.0])
    owner = np.array([0, 0, 2])
    z = scales.standardize(np.array([1.0, 4.0, 13.0]), owner)
    assert z.tolist() == [-1.0, 2.0, 2.0]
    assert scales.restore(z, owner).tolist() == [1.0, 4.0, 13.0]
    p = scales.restore(np.array([[-1.0, 0.5]] * 3, np.float32), owner)
    assert (p.dtype, p.tolist()) == (np.float32, [[1.0, 2.5], [1.0, 2.5], [1.0, 7.0]])
    assert scales.client_task(1) == Quantity(mean=12.0, deviation=scales.deviation[1])


def test_the_task_has_the_deviation_within_clients():
    x, y, owner = make_arrays((0.0, 1000.0, 50.0), (1.0, 3.0, 1.0))
    owner[-99:] = 3  # the third client has one sample, which tells nothing about its spread
    for word in ("quantity", "quantile:0.1,0.5"):
        federation = Federation.from_arrays(x, y, owner, task=word, unit="EUR").standardize_target()
        task, labels = federation.task, list_training_labels(federation)
        own = [known for known in labels if len(known) > 1]
        within = np.sqrt(sum(len(known) * known.var() for known in own) / sum(map(len, own)))
        assert (task.by_client, task.unit) == (True, "EUR")
        assert task.mean == pytest.approx(np.concatenate(labels).mean())
        assert task.deviation == pytest.approx(within)
    z = np.concatenate([(y - y.mean()) / y.std() if len(y) > 1 else (y - task.mean) / task.deviation for y in labels])
    at = np.quantile(z, (0.1, 0.5))
    assert task.at == pytest.approx(task.mean + task.deviation * at)
    errors = z[:, None] - at
    losses = np.maximum([0.1, 0.5] * errors, [-0.9, -0.5] * errors).mean()
    assert task.spread == pytest.approx(task.deviation * losses)


METHODS = {
    "quantity:huber": ("fedavg", "ditto", "knn-per", "gaussian-head", "alone"),
    "quantile:0.2,0.8": ("fedavg", "knn-per", "constant"),
}


@pytest.mark.parametrize(("word", "method"), [(word, method) for word, names in METHODS.items() for method in names])
def test_predictions_are_those_of_standardized_labels_in_the_unit_of_each_client(word, method):
    x, y, owner = make_arrays((0.0, 100.0, -30.0), (1.0, 7.0, 0.1), 60)
    made = Federation.from_arrays(x, y, owner, task=word)
    labels = list_training_labels(made)
    mean, deviation = (np.asarray([np_of(known) for known in labels]) for np_of in (np.mean, np.std))
    by_hand = Federation.from_arrays(x, (y - mean[owner]) / deviation[owner], owner, task=word)
    settings = {**SETTINGS, "rounds": 5}
    expected = simulate(method, by_hand, **settings).predictions["test"]
    found = simulate(method, made.standardize_target(), **settings).predictions["test"]
    at = expected.client[:, None]
    assert found.parts.keys() == expected.parts.keys()
    for name, p in expected.parts.items():
        apart = (found.parts[name] - (mean[at] + deviation[at] * p)) / deviation[at]
        assert np.abs(apart).max() < 1e-4, name


def test_scores_of_rounds_are_in_the_unit_of_labels():
    federation = Federation.from_arrays(*make_arrays((0.0, 50.0), (1.0, 4.0)), task="quantity").standardize_target()
    settings = {**SETTINGS, "rounds": 3, "eval_every": 1}
    result = simulate("fedavg", federation, report="best", round_metric="rmse", **settings)
    found = result.predictions["validation"]
    errors = (found.p[:, 0].astype(float) - found.y) ** 2
    last = result.rounds.iloc[-1]
    assert last["validation_accuracy"] == pytest.approx(1 - errors.mean() / federation.task.deviation**2, rel=1e-6)
    assert last["validation_rmse"] == pytest.approx(measure_rmse(result, "validation").mean(), rel=1e-6)
    ditto = simulate("ditto", federation, **settings)
    found = ditto.predictions["validation"]
    assert ditto.rounds["personal_accuracy"].iloc[-1] == pytest.approx(found.scores.mean(), rel=1e-6)


def test_a_client_that_joins_later_has_the_scale_of_its_own_training_samples():
    x, y, owner = make_arrays((0.0, 10.0, 1000.0), (1.0, 1.0, 20.0))
    federation = Federation.from_arrays(x, y, owner, task="quantity", new_clients="2").standardize_target()
    assert federation.task.deviation < 10
    assert measure_rmse(simulate("fedavg", federation, **SETTINGS)) == pytest.approx([0.5, 0.5, 10], rel=0.4)


def test_validation_samples_that_are_trained_on_do_not_change_the_scale():
    federation = Federation.from_arrays(*make_arrays(), task="quantity").standardize_target()
    result = simulate("fedavg", federation, refit=True, **SETTINGS)
    labels = list_training_labels(federation)
    assert result.run.federation.label_scales.mean == pytest.approx([y.mean() for y in labels])
    assert measure_rmse(result).max() < 1.3 * NOISE


@pytest.mark.parametrize(
    "task", [Quantity(past=(1, 10.0, 2.0)), Quantile(2, past=(1, 10.0, 2.0), quantiles=(0.1, 0.9))]
)
def test_persistence_predicts_the_same_however_targets_are_standardized(task):
    draw = np.random.default_rng(0)
    x, y, owner = draw.normal(size=(60, 5, 3)).astype(np.float32), np.arange(60) % 4, np.arange(60) % 3
    together = Federation.from_arrays(
        x, y, owner, task=replace(task, at=(0.0, 1.0)) if task.kind == "quantile" else task
    )
    first, second = (
        simulate("persistence", each, quiet=True).predictions["test"].p
        for each in (together, together.standardize_target())
    )
    assert second == pytest.approx(first, rel=1e-5)


@pytest.mark.parametrize("task", [None, "count"])
def test_only_quantities_are_standardized_by_client(task):
    x, y, owner = np.ones((30, 2)), np.arange(30) % 3, np.arange(30) % 2
    federation = Federation.from_arrays(x, y, owner, task=task)
    with pytest.raises(UsageError, match=f"for quantities, and the task is {task or 'classes'}"):
        federation.standardize_target()
