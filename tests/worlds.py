"""A small federation in memory, with the odd clients that real data has, and runs on it."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from pflcli.core import models, parameters, rng
from pflcli.core.engine.engine import Engine
from pflcli.core.engine.federation import Federation
from pflcli.core.engine.tasks.classes import Classification
from pflcli.plugins.checks.laws import federations
from pflcli.workflow.admission import small_federation as small
from pflcli.workflow.admission.small_federation import CLASSES, CLUSTER, FEATURES, ONE_CLASS, SIZES

__all__ = ["CLASSES", "CLUSTER", "FEATURES", "ONE_CLASS", "SIZES"]

TASK = Classification(CLASSES)

ABLE = small.PARTICIPANTS
federation, run, play, answers, tuned = (
    small.make_federation,
    small.make_run,
    small.play_rounds,
    small.predict,
    federations.choose,
)
same, spoiled = small.are_equal, small.replace_samples


def clustered(groups: int = 3, members: int = 4, samples: int = 30, seed: int = 0) -> Federation:
    """Three noisy classes that every group of clients calls by names of its own; client c is of group c % groups."""
    draw = np.random.default_rng(seed)
    clients, splits = groups * members, (samples, 5, 30)
    cluster = np.arange(clients) % groups
    offsets = np.concatenate([[0], np.cumsum(np.tile(splits, clients))])
    y = draw.integers(0, CLASSES, offsets[-1])
    x = draw.normal(size=(len(y), FEATURES)) + 2.0 * np.eye(FEATURES)[y]
    # For up to three groups these are the cyclic orders: no two agree on any class.
    names = (y + np.repeat(cluster, sum(splits))) % CLASSES
    return Federation.from_blocks(x.astype(np.float32), names, offsets, CLASSES, cluster=cluster)


def steps(start, data, client, key, *, epochs=1, batch=4, lr=0.1, anchor=None, pull=0.0, trainable="", also=None):
    """Gradient steps on one client's minibatches with ``pull (w - anchor)``, and nothing but autograd.

    ``also`` is added to the loss: a function of the model and the rows of the minibatch.
    """
    w = {name: value.clone().requires_grad_() for name, value in start.items()}
    rows, draw = torch.from_numpy(data.rows(client, "train")), rng.generator(0, *key, client)
    for _ in range(epochs):
        for part in rows[torch.from_numpy(draw.permutation(len(rows)))].split(batch):
            if len(part):
                loss = functional.cross_entropy(logits(w, data.inputs(part)), data.y[part]) + (
                    also(w, part) if also else 0
                )
                chosen = {name: value for name, value in w.items() if name.startswith(trainable)}
                grads = torch.autograd.grad(loss, list(chosen.values()))
                with torch.no_grad():
                    for (name, value), grad in zip(chosen.items(), grads, strict=True):
                        value -= lr * (grad + (pull * (value - anchor[name]) if name in (anchor or ()) else 0))
    return {name: value.detach() for name, value in w.items()}


def logits(w, x):
    z = torch.relu(torch.relu(x @ w["body.1.weight"].T + w["body.1.bias"]) @ w["body.3.weight"].T + w["body.3.bias"])
    return z @ w["head.weight"].T + w["head.bias"]


def mean(models, n):
    return {name: sum(k * model[name] for k, model in zip(n, models, strict=True)) / sum(n) for name in models[0]}


def close(actual, expected, atol=1e-6):
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=1e-5, atol=atol)


def probabilities(w, data, client, split="test"):
    """What a model answers for one client, (n, C)."""
    return torch.softmax(logits(w, data.inputs(data.block(client, split))), 1).numpy()


def normalized(method, mode="loop"):
    """A run of a network with BatchNorm, on clients all of whose batches hold two samples or more."""
    draw = np.random.default_rng(0)
    sizes = np.asarray([(6, 0, 3), (5, 0, 2), (0, 0, 2), (3, 0, 2)])
    x = draw.normal(size=(sizes.sum(), FEATURES)).astype(np.float32)
    y = draw.integers(0, 2, len(x))
    normalized_run = run(method, rounds=2, participation=0.67, batch_size=3)
    normalized_run.federation = Federation.from_blocks(x, y, np.cumsum([0, *sizes.ravel()]), 2)
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, 4), nn.BatchNorm1d(4))
    net = models.Net(layers, nn.Linear(4, 2))
    normalized_run.engine, normalized_run.init = (
        Engine(net, normalized_run.federation, seed=0, mode=mode),
        parameters.copy_params(net),
    )
    return normalized_run, net
