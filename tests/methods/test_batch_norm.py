"""BatchNorm in local training: no method normalizes over samples that are not in the loss, such as padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import worlds
from pflcli.core import methods, parameters, registry, rng
from pflcli.core.engine.local_sgd import batches
from pflcli.core.federation.run import Run
from pflcli.core.models import Net
from pflcli.workflow.admission import small_federation as small

SIZES = (2, 3, 5, 7, 9, 10, 11, 13, 15, 17, 19, 23, 1, 6)
"""Training samples of each client. The last minibatch of 8, or of 16 in Per-FedAvg, has any odd number of samples."""

OPTIONS = {"fedham": {"warmup": 1, "lam": 0.5}}
"""Options with which more passes are trained than by default."""


class RecordingNorm(nn.BatchNorm1d):
    """BatchNorm that records, for each batch over which it normalizes, whether the loss depends on each row of it."""

    batches: list[torch.Tensor] = []  # noqa: RUF012 - copies of the network for threads share it

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normalized = super().forward(x)
        if self.training and normalized.requires_grad:
            normalized.register_hook(lambda grad: self.batches.append((grad != 0).any(dim=1)))
        return normalized


def draw_network(norm):
    def draw(seed):
        with torch.random.fork_rng(devices=[]):
            torch.random.manual_seed(seed)
            layers = nn.Linear(small.FEATURES, 8), nn.Tanh(), norm(8)  # every output of the norm moves the logits
            return Net(nn.Sequential(nn.Flatten(), *layers), nn.Linear(8, small.CLASSES))

    return draw


def make_run(method, mode, **settings) -> Run:
    data = small.make_federation(client_sizes=[(train, 2, 2) for train in SIZES])
    plan = {"rounds": 2, "participation": 1.0, "batch_size": 8, "epochs": 1, "lr": 0.03, **settings}
    return small.make_run(method, mode=mode, data=data, normalizes=True, options=OPTIONS.get(method), **plan)


@pytest.mark.parametrize("method", [name for name in registry.names("methods") if methods.load(name).has_rounds])
def test_batch_norm_normalizes_over_samples_of_the_loss_alone(method, monkeypatch):
    """Each row that a loop normalizes is in its loss, and stacks, which pad minibatches, compute the same."""
    states = []
    for mode, norm in (("loop", RecordingNorm), ("stacked", nn.BatchNorm1d)):
        monkeypatch.setattr(small, "draw_normalizing_network", draw_network(norm))
        monkeypatch.setattr(RecordingNorm, "batches", [])
        run = make_run(method, mode)
        state = worlds.play(method, run)
        answers = worlds.answers(method, run, state)
        if mode == "loop":
            assert len(RecordingNorm.batches) > len(SIZES)
            assert all(rows.all() for rows in RecordingNorm.batches)
        states.append((state, answers))
    np.testing.assert_allclose(states[0][1]["test"], states[1][1]["test"], atol=1e-4)


def step(net, rows, data, rate):
    """A step of gradient descent; BatchNorm uses its running statistics for a single sample."""
    net.train(len(rows) > 1)
    net.zero_grad()
    functional.cross_entropy(net.head(net.body(data.inputs(rows))), data.y[rows]).backward()
    with torch.no_grad():
        for value in net.parameters():
            value -= rate * value.grad


def take_meta_step(net, rows, data, alpha, lr):
    """A step of Per-FedAvg on the network ``net``, whose running statistics follow both halves."""
    first, second = (rows[::2], rows[1::2]) if len(rows) >= 4 else (rows, rows)
    weights = [value.detach().clone() for value in net.parameters()]
    step(net, first, data, alpha)
    step(net, second, data, 0.0)
    with torch.no_grad():
        for value, weight in zip(net.parameters(), weights, strict=True):
            value.copy_(weight - lr * value.grad)


@pytest.mark.parametrize("mode", ["loop", "stacked"])
def test_per_fedavg_with_batch_norm_matches_plain_training(mode, monkeypatch):
    monkeypatch.setattr(small, "draw_normalizing_network", draw_network(nn.BatchNorm1d))
    run = make_run("per-fedavg", mode, rounds=1)
    actual = worlds.play("per-fedavg", run)["global"]
    trained, data = [], run.federation
    for client, samples in enumerate(SIZES):
        net = draw_network(nn.BatchNorm1d)(0)
        net.load_state_dict(run.init)
        order = data.rows(client, "train")[rng.generator(0, "sgd", 0, client).permutation(samples)]
        for part in batches(order, 16, join_single=True):
            take_meta_step(net, torch.from_numpy(part), data, run.cfg.alpha, run.settings.lr)
        trained.append({n: value for n, value in parameters.copy_params(net).items() if value.is_floating_point()})
    expected = worlds.mean(trained, SIZES)
    worlds.close({name: actual[name] for name in expected}, expected, atol=1e-5)
