"""Alone and alone-pooled on quantities and counts, against scikit-learn, and the mean of clients with few samples."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import PoissonRegressor, RidgeCV
from sklearn.preprocessing import StandardScaler

from pflcli import Federation, simulate
from pflcli.core.errors import UnsuitedError

HOW = {"model": "mlp", "rounds": 1, "quiet": True}


def make_clients(kind):
    """Return three clients with 60 samples each, whose labels are linear in the features, or rates of counts."""
    draw = np.random.default_rng(0)
    x = (3 + 2 * draw.normal(size=(180, 4))).astype(np.float32)
    client = np.repeat(np.arange(3), 60)
    line = 0.3 * (x[:, 0] - x[:, 1]) + 0.2 * client
    y = draw.poisson(np.exp(line)) if kind == "count" else 100 * line + draw.normal(size=180)
    return Federation.from_arrays(x, y, client, task=kind)


def read_split(federation, client, split):
    rows = federation.rows(client, split)
    return federation.x[rows].numpy(), federation.y[rows].numpy()


@pytest.mark.parametrize("kind", ["quantity", "count"])
def test_linear_models_are_those_of_scikit_learn(kind):
    federation = make_clients(kind)
    found = simulate("alone", federation, options={"model": "linear"}, **HOW).predictions["test"]
    for client in range(3):
        x, y = read_split(federation, client, "train")
        scaler = StandardScaler().fit(x.astype(float))
        linear = (
            RidgeCV((0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)) if kind == "quantity" else PoissonRegressor(alpha=1 / 36)
        )
        expected = linear.fit(scaler.transform(x), y).predict(
            scaler.transform(read_split(federation, client, "test")[0])
        )
        np.testing.assert_allclose(found.p[found.client == client, 0], expected, rtol=1e-3)


@pytest.mark.parametrize("method", ["alone", "alone-pooled"])
def test_the_model_with_the_smaller_loss_is_chosen(method):
    draw = np.random.default_rng(0)
    x, client = draw.uniform(-1, 1, (400, 2)), np.repeat(["line", "step"], 200)
    y = np.where(client == "line", 5 * x[:, 0], 5 * np.sign(x[:, 0] * x[:, 1]))
    result = simulate(method, Federation.from_arrays(x, y, client, task="quantity"), **HOW)
    chosen = {name: values.tolist() for name, values in result.tuned.items()}
    assert chosen == (
        {"linear": [1, 0], "forest": [0, 1]} if method == "alone" else {"linear": [0, 0], "forest": [1, 1]}
    )


@pytest.mark.parametrize("model", ["forest", "boosting"])
@pytest.mark.parametrize("kind", ["quantity", "count"])
def test_trees_predict_better_than_the_mean(kind, model):
    federation = make_clients(kind)
    assert simulate("alone", federation, options={"model": model}, **HOW).score() > 0


def test_a_client_with_few_samples_predicts_their_mean_and_one_without_any_that_of_all():
    x, y = np.arange(20.0)[:, None], np.arange(20.0)
    client = np.repeat(["many", "none", "two"], (12, 3, 5))
    split = np.asarray(["train"] * 12 + ["test"] * 3 + ["train"] * 2 + ["test"] * 3)
    federation = Federation.from_arrays(x, y, client, split=split, task="quantity")
    found = simulate("alone", federation, options={"model": "linear"}, **HOW).predictions["test"]
    np.testing.assert_allclose(found.p[:, 0], [federation.task.mean] * 3 + [15.5] * 3, rtol=1e-6)


def test_classifiers_are_refused():
    with pytest.raises(UnsuitedError, match="model=lda learns classes, and labels are numbers"):
        simulate("alone", make_clients("quantity"), options={"model": "lda"}, **HOW)
    writers = Federation.from_dataset("writers", clients=4)
    linear, logistic = (simulate("alone", writers, options={"model": name}, **HOW) for name in ("linear", "logistic"))
    np.testing.assert_array_equal(linear.predictions["test"].p, logistic.predictions["test"].p)
