"""Compiled loops take the steps of chains of linear layers, and pass through chains for rules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import worlds
from helpers import cross_entropy_rule, set_own_products
from pflcli.core import models, tasks
from pflcli.core.engine import linear_chain, strategy
from pflcli.core.engine.engine import Engine
from pflcli.core.engine.federation import Federation
from pflcli.core.engine.gradients import Pass
from pflcli.core.engine.local_sgd import LocalSGD
from pflcli.core.engine.strategy import WorkerNet
from pflcli.methods import fedproto


def test_compiled_loops_train_the_body_below_a_head_of_two_layers(monkeypatch):
    """Prototypes pull the body alone."""
    torch.manual_seed(0)
    data, trained = worlds.federation(), []
    head = nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, worlds.CLASSES))
    net = models.Net(nn.Sequential(nn.Flatten(), nn.Linear(worlds.FEATURES, 7), nn.ReLU()), head)
    shared = {"mean": torch.randn(worlds.CLASSES, 7), "known": torch.ones(worlds.CLASSES), "lam": torch.tensor(2.0)}
    plan = LocalSGD(2, 4, np.full(2, 0.1), loss=fedproto._losses, shared=shared)
    start = {name: value.expand(2, *value.shape) for name, value in net.state_dict().items()}
    for own in (False, True):
        set_own_products(monkeypatch, own)
        monkeypatch.setattr(linear_chain, "LARGE", 0)
        trained += Engine(net, data, seed=0, mode="stacked").local_sgd([0, 2], start, plan, ("sgd", 0))
    worlds.close(trained[1].params, trained[0].params, atol=1e-5)


@pytest.mark.parametrize(
    "settings", [{}, {"momentum": 0.9}, {"gradient": cross_entropy_rule}, {"precision": "bfloat16"}]
)
def test_one_compiled_loop_takes_all_steps_of_plain_sgd(settings, monkeypatch):
    set_own_products(monkeypatch, True)
    monkeypatch.setattr(linear_chain, "LARGE", 0)
    net = models.Net(nn.Sequential(nn.Flatten(), nn.Linear(5, 4), nn.ReLU()), nn.Linear(4, 3))
    plan = LocalSGD(1, 4, np.full(1, 0.1), **settings)
    for task in (worlds.TASK, object()):  # the loop computes the losses of tasks of pfl itself
        chosen = strategy.choose(WorkerNet.compile(net, (5,), task), plan, "stacked", 3)
        assert (chosen.train is not None) == (settings == {} and task is worlds.TASK)


@pytest.mark.parametrize("word", ["quantity", "quantity:absolute", "quantity:huber", "quantile:0.1,0.6", "count"])
@pytest.mark.parametrize("prox", [0.0, 0.5])
def test_compiled_loops_take_the_steps_of_numbers(word, prox, monkeypatch):
    """Weights and losses are those of PyTorch's gradients, whether a loop takes all steps or each of a method."""
    blocks, draw = worlds.federation(), np.random.default_rng(0)
    y = draw.poisson(3.0, len(blocks.y)).astype(np.float64) * (1 if word == "count" else 100) - 5 * (word != "count")
    data = Federation(blocks.x, torch.from_numpy(y), blocks.offsets, tasks.parse(word, "")).fitted()
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(worlds.FEATURES, 7), nn.ReLU())
    net = models.Net(body, nn.Linear(7, data.task.outputs))
    start, found = net.state_dict(), []
    plan = LocalSGD(2, 4, np.full(2, 0.1), prox=(start, prox) if prox else None)
    for own in (False, True):
        set_own_products(monkeypatch, own)
        monkeypatch.setattr(linear_chain, "LARGE", 0)
        chosen = strategy.choose(WorkerNet.compile(net, (worlds.FEATURES,), data.task), plan, "stacked", 2)
        assert (chosen.train is not None) == own
        for rule in ({}, {"pass_rule": pass_at_own_models}):
            one = replace(plan, **rule)
            models_of = {name: value.expand(2, *value.shape).clone() for name, value in start.items()}
            found += Engine(net, data, seed=0, mode="stacked").local_sgd([0, 2], models_of, one, ("sgd", 0))
    for part in found[1:]:
        worlds.close(part.params, found[0].params, atol=1e-5)
        np.testing.assert_allclose(part.loss, found[0].loss, rtol=1e-5)


def pass_at_own_models(network, params, batch):
    return [Pass(params, batch)]
