"""kNN-Per+: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import worlds
from by_hand import K, predict_with_neighbours
from pflcli.core import methods


def test_knn_per_plus_matches_a_brute_force_reference():
    """Plain steps of SGD, then neighbours by brute force among what the fine-tuned network makes of the samples."""
    lam, client = 0.4, 0
    run = worlds.run("knn-per-plus", options={"k": K, "weight": lam, "epochs": 2, "lr": 0.05})
    data = run.federation
    w = worlds.steps(run.backbone, data, client, ("sgd", "fine-tune"), epochs=2, lr=0.05)

    def outputs(split):
        x = data.inputs(data.block(client, split))
        z = torch.relu(x @ w["body.1.weight"].T + w["body.1.bias"])
        z = torch.relu(z @ w["body.3.weight"].T + w["body.3.bias"])
        return z.double().numpy(), worlds.logits(w, x).double().numpy()

    labels = data.y[data.block(client, "train")].numpy()
    _, votes, h = predict_with_neighbours(outputs("train")[0], labels, *outputs("test"))
    actual = worlds.answers("knn-per-plus", run, {}, np.asarray([client]))["test"]
    np.testing.assert_allclose(actual, lam * votes + (1 - lam) * h, atol=1e-5)


@pytest.mark.parametrize(
    ("method", "options"), [("knn-per", {"epochs": 0}), ("fedavg-plus", {"weight": 0.0, "epochs": 2})]
)
def test_knn_per_plus_equals_knn_per_or_fedavg_plus_with_neutral_options(method, options):
    run = worlds.run("knn-per-plus", options=options)
    own = {"epochs": 2} if method == "fedavg-plus" else {"cross_validate": 0}
    expected = worlds.answers(method, worlds.run(method, options=own), {})["test"]
    np.testing.assert_allclose(worlds.answers("knn-per-plus", run, {})["test"], expected, atol=1e-6)


@pytest.mark.parametrize("space", [{"representation": "logits"}, {"distance": "auto", "representation": "auto"}])
def test_knn_per_plus_without_epochs_is_knn_per_in_every_space(space):
    actual = worlds.answers("knn-per-plus", worlds.run("knn-per-plus", options={"epochs": 0, **space}), {})["test"]
    extended = worlds.run("knn-per-extended", options={"cross_validate": 0, **space})
    expected = worlds.answers("knn-per-extended", extended, {})["test"]
    np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.parametrize("method", ["knn-per", "knn-per-plus"])
def test_model_of_a_client_has_the_store_of_that_client(method):
    run = worlds.run(method)
    run.keeps_models = True
    predictor = methods.load(method).personalize(run, {}, np.asarray([1, 3]))
    for client in (1, 3):
        expected = run.federation.y[run.federation.block(client, "train")].tolist()
        assert predictor.model_of(client).neighbours.store.y.tolist() == expected
