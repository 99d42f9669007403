"""Pooled: the training of one network on all samples, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

import worlds
from by_hand import build_net
from pflcli.core import methods, rng


@pytest.mark.parametrize("refit", [True, False])
def test_pooled_trains_one_network_on_the_samples_of_all_clients(refit):
    run = worlds.run("pooled", rounds=6, participation=0.5, refit=refit)
    state = methods.load("pooled").setup(run)
    data = run.federation
    rows = torch.from_numpy(np.concatenate([data.rows(client, "train") for client in data.participants]))
    net, draw = build_net(run.init), rng.generator(0, "server", "pooled", 0)
    size = run.settings.batch_size
    steps = 3 * run.settings.epochs * sum(-(-len(data.rows(client, "train")) // size) for client in data.participants)
    batches = [part for _ in range(9) for part in rows[torch.from_numpy(draw.permutation(len(rows)))].split(size)]
    assert len(batches) >= steps
    optimizer = torch.optim.SGD(net.parameters(), lr=run.settings.lr)
    for part in batches[:steps]:
        optimizer.zero_grad()
        functional.cross_entropy(net.head(net.body(data.x[part])), data.y[part]).backward()
        optimizer.step()
    for name, value in net.named_parameters():
        torch.testing.assert_close(state["global"][name], value.detach(), atol=1e-5, rtol=0)
    with torch.no_grad():
        p = [torch.softmax(net.head(net.body(data.x[data.block(client, "test")])), 1) for client in run.clients]
    np.testing.assert_allclose(worlds.answers("pooled", run, state)["test"], torch.cat(p), atol=1e-5)


def test_pooled_takes_as_many_steps_as_all_fedavg_clients_together():
    """With the learning rate of the round in which a client of FedAvg would take the step."""
    run = worlds.run("pooled", rounds=4, participation=0.5, steps=3, milestones="2", gamma=0.5)
    state = methods.load("pooled").setup(run)
    rows = run.federation.rows_of(run.federation.participants, "train")
    steps = 4 * 3 * len(run.federation.participants) // 2
    rates = [0.1 if 4 * step // steps < 2 else 0.05 for step in range(steps)]
    expected = run.server_sgd(rows, run.init, t="pooled", epochs=0, steps=steps, lr=lambda step: rates[step])
    for name, value in expected.items():
        assert torch.equal(state["global"][name], value), name


def test_pooled_counts_all_samples_up_and_one_model_per_client_down():
    run = worlds.run("pooled")
    methods.load("pooled").setup(run)
    clients = run.federation.participants
    rows = run.federation.rows_of(clients, "train")
    one = sum(value.numel() * value.element_size() for value in run.init.values())
    assert run.traffic["up"] == run.federation.x[rows].nbytes + run.federation.y[rows].nbytes
    assert run.traffic["down"] == one * len(clients)
