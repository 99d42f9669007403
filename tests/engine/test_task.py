"""A task other than classification: one output, a number, with the squared error as loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import worlds
from helpers import cross_entropy_rule, set_own_products
from pflcli.core import models, parameters, rng
from pflcli.core.engine import linear_chain
from pflcli.core.engine.engine import Engine
from pflcli.core.engine.federation import Federation
from pflcli.core.engine.gradients import Pass
from pflcli.core.engine.local_sgd import LocalSGD
from pflcli.core.engine.tasks.classes import Classification
from pflcli.core.engine.tasks.quantity import Quantity


def loss_of_outputs(logits, z, params, batch):
    return batch.loss(logits)


def loss_of_parameters(model, params, batch):
    return batch.loss(model(params, batch.x))


def pass_at_own_models(network, params, batch):
    return [Pass(params, batch)]


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"loss": loss_of_outputs},
        {"pass_rule": pass_at_own_models},
        {"gradient": cross_entropy_rule},
        {"objective": loss_of_parameters},
    ],
)
@pytest.mark.parametrize("mode", ["loop", "stacked"])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
@pytest.mark.parametrize("compiles", [False, True])
def test_clients_train_by_the_loss_of_their_task(mode, rule, activation, compiles, monkeypatch):
    if compiles:
        set_own_products(monkeypatch, True)
        monkeypatch.setattr(linear_chain, "LARGE", 0)
    blocks = worlds.federation()
    draw = torch.Generator().manual_seed(0)
    data = Federation(blocks.x, torch.randn(len(blocks.y), generator=draw), blocks.offsets, Quantity())
    torch.manual_seed(0)
    net = models.Net(nn.Sequential(nn.Flatten(), nn.Linear(worlds.FEATURES, 6), activation()), nn.Linear(6, 1))
    start, clients = parameters.copy_params(net), [0, 2]
    stack = parameters.repeat(start, len(clients)) if rule else start
    plan = LocalSGD(2, 4, np.full(2, 0.1), **rule)
    engine = Engine(net, data, seed=0, mode=mode)
    (part,) = engine.local_sgd(clients, stack, plan, ("sgd", 0))
    for place, client in enumerate(clients):
        one = models.Net(nn.Sequential(nn.Flatten(), nn.Linear(worlds.FEATURES, 6), activation()), nn.Linear(6, 1))
        one.load_state_dict(start)
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        rows, order = torch.from_numpy(data.rows(client, "train")), rng.generator(0, "sgd", 0, client)
        for _ in range(2):
            for batch in rows[torch.from_numpy(order.permutation(len(rows)))].split(4):
                optimizer.zero_grad()
                (one(data.inputs(batch))[:, 0] - data.y[batch]).square().mean().backward()
                optimizer.step()
        worlds.close(parameters.pick(part.params, place), parameters.copy_params(one), atol=1e-5)
        predicted = engine.infer_each(
            np.asarray([client]), parameters.repeat(parameters.pick(part.params, place), 1), "test"
        )
        assert predicted.shape == (len(data.rows(client, "test")), 1)


def test_gradients_of_the_mean_losses_are_scaled_by_client():
    task, draw = Classification(3), torch.Generator().manual_seed(0)
    logits, weight = torch.randn(2, 4, 3, generator=draw), torch.rand(2, 4, generator=draw)
    y, scale = torch.tensor([[0, 1, 2, 0], [2, 2, 1, 0]]), torch.tensor([2.0, 0.5])
    leaf = logits.clone().requires_grad_()
    each = torch.stack([task.losses(leaf[row], y[row]) for row in range(2)])
    expected = (each * weight).sum(dim=1)
    (by_logits,) = torch.autograd.grad((expected * scale).sum(), leaf)
    losses, grad = task.mean_losses(logits, y, weight, scale)
    torch.testing.assert_close(losses, expected.detach())
    torch.testing.assert_close(grad, by_logits)
