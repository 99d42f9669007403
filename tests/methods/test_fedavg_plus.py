"""FedAvg+: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import worlds
from by_hand import build_net, train
from pflcli.core.errors import UsageError


def test_fedavg_plus_fine_tunes_the_backbone():
    run = worlds.run("fedavg-plus", options={"epochs": 2})
    actual = worlds.answers("fedavg-plus", run, {})["test"]
    data, expected = run.federation, []
    for client in run.clients:
        rows = data.rows(client, "train")
        params = train(run.backbone, data.x[rows], data.y[rows], 0, ("sgd", "fine-tune"), client, 2, 4, 0.1)
        model = build_net(params)
        with torch.no_grad():
            expected.append(torch.softmax(model.head(model.body(data.x[data.block(client, "test")])), 1))
    np.testing.assert_allclose(actual, torch.cat(expected), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "trainable"),
    [
        ({"upper": 2}, ("body.3.", "head.")),
        ({"trainable": "head."}, "head."),
        ({"trainable": "bias"}, ("body.1.bias", "body.3.bias", "head.bias")),
    ],
    ids=["two layers", "head", "biases"],
)
def test_fedavg_plus_trains_only_the_chosen_layers(options, trainable):
    run = worlds.run("fedavg-plus", options={"epochs": 2, **options})
    actual = worlds.answers("fedavg-plus", run, {}, np.asarray([0]))["test"]
    plan = {"epochs": 2, "trainable": trainable}
    model = worlds.steps(run.backbone, run.federation, 0, ("sgd", "fine-tune"), **plan)
    np.testing.assert_allclose(actual, worlds.probabilities(model, run.federation, 0), atol=1e-6)


def test_fedavg_plus_refuses_invalid_choices_of_trainable_layers():
    run = worlds.run("fedavg-plus", options={"trainable": "haed."})
    with pytest.raises(UsageError, match="no parameters under"):
        worlds.answers("fedavg-plus", run, {})
    with pytest.raises(UsageError, match="give one"):
        worlds.run("fedavg-plus", options={"trainable": "head.", "upper": 1})
