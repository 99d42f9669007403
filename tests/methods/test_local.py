"""Local: rounds worked out by hand, neutral settings, and limits of its options."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

import worlds
from by_hand import build_net, train
from pflcli.core import rng


@pytest.mark.parametrize("refit", [True, False])
def test_local_trains_each_client_on_its_own_samples(refit):
    run = worlds.run("local", options={"epochs": 3}, refit=refit)
    actual = worlds.answers("local", run, {})
    data, expected = run.federation, []
    for client in run.clients:
        rows = worlds.federation().rows(client, *(("train", "validation") if refit else ("train",)))
        params = train(run.init, data.x[rows], data.y[rows], 0, ("sgd", "local"), client, 3, 4, 0.1)
        model = build_net(params)
        with torch.no_grad():
            expected.append(torch.softmax(model.head(model.body(data.x[data.block(client, "test")])), 1))
    np.testing.assert_allclose(actual["test"], torch.cat(expected), atol=1e-5)


def test_local_trains_as_many_epochs_as_a_fedavg_client_by_default():
    run = worlds.run("local", rounds=10, participation=0.5, epochs=2)
    by_default = worlds.answers("local", run, {})["test"]
    run = worlds.run("local", rounds=10, participation=0.5, epochs=2, options={"epochs": 10})
    np.testing.assert_array_equal(by_default, worlds.answers("local", run, {})["test"])


def test_local_takes_as_many_steps_as_a_fedavg_client_by_default():
    """With the learning rate of the round that a client of FedAvg would be in."""
    settings = {"rounds": 4, "participation": 0.5, "steps": 3, "milestones": "2", "gamma": 0.5}
    run = worlds.run("local", **settings)
    actual = worlds.answers("local", run, {})["test"]
    rates = [0.1] * 3 + [0.05] * 3
    parts = run.local_sgd(run.clients, run.init, t="local", epochs=0, steps=6, lr=lambda step: rates[step])
    expected = run.predictor(run.clients, parts).answer("test")["p"]
    np.testing.assert_array_equal(actual, expected)
    by_steps = worlds.run("local", options={"steps": 6}, **settings)
    np.testing.assert_array_equal(worlds.answers("local", by_steps, {})["test"], expected)


def test_local_with_adam_equals_torch_adam():
    run = worlds.run("local", options={"steps": 7, "optimizer": "adam"}, lr=0.01)
    actual = worlds.answers("local", run, {}, np.asarray([0]))["test"]
    data, net = run.federation, build_net(run.init)
    rows, draw = torch.from_numpy(data.rows(0, "train")), rng.generator(0, "sgd", "local", 0)
    batches = [part for _ in range(3) for part in rows[torch.from_numpy(draw.permutation(len(rows)))].split(4)][:7]
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for part in batches:
        optimizer.zero_grad()
        functional.cross_entropy(net.head(net.body(data.x[part])), data.y[part]).backward()
        optimizer.step()
    with torch.no_grad():
        expected = torch.softmax(net.head(net.body(data.x[data.block(0, "test")])), 1)
    np.testing.assert_allclose(actual, expected, atol=1e-5)
