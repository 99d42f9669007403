"""A small federation in memory, with the odd clients that real data has, and runs on it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from pflcli.core import models, parameters, rng
from pflcli.core.engine.engine import Engine
from pflcli.core.engine.federation import Federation
from pflcli.core.engine.tasks.classes import Classification
from pflcli.core.engine.tasks.count import Count
from pflcli.core.engine.tasks.quantity import Quantity
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


def quantities() -> Federation:
    """The clients of ``federation``, whose labels are numbers in thousands, with a slope and a level of their own.

    Features are small, because steps of the rate 0.1 are long for squared errors.
    """
    data = federation()
    x, draw = 0.3 * data.x.numpy(), np.random.default_rng(1)
    client = np.repeat(np.arange(len(SIZES)), np.sum(SIZES, axis=1))
    y = 2000 + 500 * (x[:, 0] + 0.5 * client * x[:, 1] - client + 0.3 * draw.normal(size=len(x)))
    is_train = np.concatenate([np.repeat([True, False, False], sizes) for sizes in SIZES])
    task = Quantity(mean=y[is_train].mean(), deviation=y[is_train].std())
    return Federation.from_blocks(x, y, data.offsets, task, cluster=CLUSTER)


def counts() -> Federation:
    """The clients of ``quantities``, with whole numbers from 0 to about 10."""
    data = quantities()
    y = torch.div(data.y - data.y.min(), 500).round()
    labels = y.numpy()[data.rows_of(data.clients, "train")]
    return replace(data, y=y, task=Count().fitted(labels))


def losses(outputs, y, data):
    """The losses of outputs: cross-entropy, or squared errors in deviations of all training labels."""
    if isinstance(data.task, Classification):
        return functional.cross_entropy(outputs, y, reduction="none")
    labels = np.concatenate([data.y.numpy()[data.rows(client, "train")] for client in range(len(SIZES))])
    return (outputs[:, 0] - ((y - labels.mean()) / labels.std()).float()) ** 2


def loss(outputs, y, data):
    """The mean of the losses."""
    return losses(outputs, y, data).mean()


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
                total = loss(logits(w, data.inputs(part)), data.y[part], data) + (also(w, part) if also else 0)
                chosen = {name: value for name, value in w.items() if name.startswith(trainable)}
                grads = torch.autograd.grad(total, list(chosen.values()))
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
