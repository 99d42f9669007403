"""A small federation in memory, with the odd clients that real data has, and runs on it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from pflcli import config, methods, models, parameters, rng
from pflcli.engine.engine import Engine
from pflcli.engine.federation import SPLITS, Federation
from pflcli.federation.run import Run
from pflcli.knn.embedded import Embedded
from pflcli.knn.indexes import flat_indexes
from pflcli.knn.stores import Stores
from pflcli.parameters.model_table import ModelTable
from pflcli.settings import Settings

# Samples by client in train, validation and test: ordinary, one sample, no test, no validation, one class, empty.
SIZES = ((12, 4, 5), (1, 0, 0), (7, 3, 0), (6, 0, 4), (8, 3, 3), (0, 0, 0), (9, 3, 4))
ONE_CLASS = 4
ABLE = [0, 1, 2, 3, 4, 6]
"""Clients with training samples."""
CLUSTER = np.asarray([0, 1, 0, 1, 0, 1, 1])
CLASSES = 3
FEATURES = 5


def federation(seed: int = 0) -> Federation:
    """Three noisy classes; every client's features are shifted by its own offset."""
    draw = np.random.default_rng(seed)
    sizes = np.asarray(SIZES)
    offsets = np.concatenate([[0], np.cumsum(sizes.ravel())])
    client = np.repeat(np.arange(len(sizes)), sizes.sum(axis=1))
    y = draw.integers(0, CLASSES, offsets[-1])
    y[client == ONE_CLASS] = 1
    x = draw.normal(size=(len(y), FEATURES)) + 2.0 * np.eye(FEATURES)[y] + 0.3 * client[:, None]
    return Federation.of(x.astype(np.float32), y, offsets, CLASSES, cluster=CLUSTER)


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
    return Federation.of(x.astype(np.float32), names, offsets, CLASSES, cluster=cluster)


def run(
    method: str | None = None,
    *,
    seed: int = 0,
    threads: int = 1,
    mode: str = "auto",
    options: dict | None = None,
    data: Federation | None = None,
    **settings: object,
) -> Run:
    """A run of ``method`` with all that it may need: a backbone (unlike the start), embeddings and stores."""
    data = federation() if data is None else data
    plan = config.build(Settings, {"model": "mlp", "rounds": 3, "participation": 0.5, "batch_size": 4, **settings}, "")
    data = data.refitted() if plan.refit else data
    net = models.create("mlp", data.in_shape, CLASSES, seed)
    engine = Engine(net, data, seed=seed, threads=threads, mode=mode)
    code = methods.load(method) if method else None
    cfg = config.build(code.Config, options or {}, str(method)) if code else None
    new_run = Run(code.KIND if code else "server", cfg, plan, seed, data, engine, parameters.copy_params(net))
    new_run.draw_model = lambda number: parameters.copy_params(
        models.create("mlp", data.in_shape, CLASSES, seed + 100 * number)
    )
    new_run.backbone = parameters.copy_params(models.create("mlp", data.in_shape, CLASSES, seed + 1))
    new_run.embeddings = embed(new_run)
    new_run.stores = stores(new_run)
    return new_run


def embed(run: Run) -> dict[str, Embedded]:
    """Embed every split with the run's backbone."""
    embedded = {}
    for split in SPLITS:
        rows = np.concatenate([run.federation.rows(int(c), split) for c in run.clients])
        logits, z = run.engine.infer(run.backbone, rows, features=True)
        bounds = np.concatenate([[0], np.cumsum(run.federation.sizes(split))])
        embedded[split] = Embedded(z.numpy(), logits.numpy(), run.federation.y[rows].numpy(), bounds)
    return embedded


def stores(run: Run) -> Stores:
    """Build every client's store of its training samples."""
    parts = [run.embeddings["train"].take(np.asarray([client])) for client in run.clients]
    sizes = [len(part.y) for part in parts]
    labels = np.concatenate([part.y for part in parts])
    return Stores(*flat_indexes([part.z for part in parts]), labels, np.cumsum([0, *sizes]), np.asarray(sizes))


def play(method: str, run: Run, first: int = 0, last: int | None = None, state: dict | None = None) -> dict:
    """Run a method's rounds ``first`` to ``last`` and return its state."""
    code = methods.load(method)
    if state is None:
        state = code.setup(run)
    if code.has_rounds:
        for t in range(first, run.settings.rounds if last is None else last):
            state = code.train_round(run, state, t)
    return state


def answers(method: str, run: Run, state: dict, clients: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """What a method answers, by split, as ``personalize`` stores it."""
    code = methods.load(method)
    with run.personalizing():
        predictor = code.personalize(run, state, run.clients if clients is None else clients)
        return {split: predictor.answer(split)["p"] for split in predictor.splits}


def tuned(method: str, run: Run, state: dict) -> dict[str, np.ndarray]:
    """What each client chose by its validation samples, by name."""
    with run.personalizing():
        return dict(methods.load(method).personalize(run, state, run.clients).tuned)


def spoiled(data: Federation, *splits: str) -> Federation:
    """The same federation, but for the samples of these splits: other features, other labels."""
    x, y = data.x.clone(), data.y.clone()
    for client in data.clients:
        rows = data.rows(client, *splits)
        x[rows], y[rows] = 3 - 2 * x[rows], (y[rows] + 1) % data.classes
    return replace(data, x=x, y=y)


def moved_to_training(data: Federation) -> Federation:
    """The same samples, those for validation now for training."""
    sizes = [(data.sizes("train", "validation")[c], 0, data.sizes("test")[c]) for c in data.clients]
    return replace(data, offsets=np.concatenate([[0], np.cumsum(sizes)]))


def same(a: object, b: object) -> bool:
    """Whether two nested states are equal to the bit."""
    if isinstance(a, ModelTable) and isinstance(b, ModelTable):
        return same({"all": a[range(len(a))]}, {"all": b[range(len(b))]})
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def steps(start, data, client, key, *, epochs=1, batch=4, lr=0.1, anchor=None, pull=0.0, trainable=""):
    """Gradient steps on one client's minibatches with ``pull (w - anchor)``, and nothing but autograd."""
    w = {name: value.clone().requires_grad_() for name, value in start.items()}
    rows, draw = torch.from_numpy(data.rows(client, "train")), rng.generator(0, *key, client)
    for _ in range(epochs):
        for part in rows[torch.from_numpy(draw.permutation(len(rows)))].split(batch):
            if len(part):
                loss = functional.cross_entropy(logits(w, data.inputs(part)), data.y[part])
                chosen = {name: value for name, value in w.items() if name.startswith(trainable)}
                grads = torch.autograd.grad(loss, list(chosen.values()))
                with torch.no_grad():
                    for (name, value), grad in zip(chosen.items(), grads, strict=True):
                        value -= lr * (grad + (pull * (value - anchor[name]) if anchor else 0))
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
    normalized_run.federation = Federation.of(x, y, np.cumsum([0, *sizes.ravel()]), 2)
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, 4), nn.BatchNorm1d(4))
    net = models.Net(layers, nn.Linear(4, 2))
    normalized_run.engine, normalized_run.init = (
        Engine(net, normalized_run.federation, seed=0, mode=mode),
        parameters.copy_params(net),
    )
    return normalized_run, net
