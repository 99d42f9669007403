"""Compiled loops take the steps of chains of linear layers, and pass through chains for rules."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import worlds
from helpers import cross_entropy_rule, set_own_products
from pflcli.core import models
from pflcli.core.engine import linear_chain, strategy
from pflcli.core.engine.engine import Engine
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
    for task in (worlds.TASK, object()):  # the loop computes the cross-entropy itself
        chosen = strategy.choose(WorkerNet.compile(net, (5,), task), plan, "stacked", 3)
        assert (chosen.train is not None) == (settings == {} and task is worlds.TASK)
