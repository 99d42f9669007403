"""Pieces of rounds worked out by hand that the tests of several methods share."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import worlds
from pflcli.core import parameters, rng
from pflcli.evaluation.metrics import client_relations
from pflcli.methods.parts import peers


def build_net(params):
    """The ``mlp`` with these parameters as a network of PyTorch."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(worlds.FEATURES, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU())
    model = nn.Module()
    model.body, model.head = body, nn.Linear(200, worlds.CLASSES)
    model.load_state_dict(params)
    return model


def train(params, x, y, seed, key, client, epochs, batch, lr):
    """A client's local training with torch.optim.SGD."""
    model = build_net(params)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    draw = rng.generator(seed, *key, client)
    for _ in range(epochs):
        for part in np.split(order := draw.permutation(len(y)), range(batch, len(order), batch)):
            optimizer.zero_grad()
            functional.cross_entropy(model.head(model.body(x[part])), y[part]).backward()
            optimizer.step()
    return {name: value.detach() for name, value in model.state_dict().items()}


def client_loss(model, data, client):
    """The loss of a model on a client's training samples."""
    rows = data.block(client, "train")
    return float(worlds.loss(worlds.logits(model, data.inputs(rows)), data.y[rows], data))


def mean_members(run, models, members):
    """The mean of the members' models, weighted by their training samples."""
    return worlds.mean([models[c] for c in members], run.federation.sizes("train")[members].tolist())


CLIENT = 0
"""The client whose class frequencies are compared with those of all clients."""


def training_embeddings(run, clients):
    """Embeddings and labels of the clients' training samples."""
    part = run.embeddings["train"].take(np.asarray(clients))
    return part.z.astype(np.float64), part.y


def class_frequencies(run, kappa):
    """The class frequencies of all clients, and those of ``CLIENT`` with ``kappa`` samples of all clients."""
    _, labels = training_embeddings(run, worlds.ABLE)
    _, own = training_embeddings(run, [CLIENT])
    common = np.bincount(labels, minlength=worlds.CLASSES) / len(labels)
    return common, (np.bincount(own, minlength=worlds.CLASSES) + kappa * common) / (len(own) + kappa)


def compute_loss(w, data, rows):
    """The cross-entropy of the model ``w`` on some rows."""
    return functional.cross_entropy(worlds.logits(w, data.inputs(rows)), data.y[rows])


def gradient(w, data, rows):
    """The gradient of the loss at ``w`` on some rows, by name."""
    at = {name: value.detach().clone().requires_grad_() for name, value in w.items()}
    return dict(zip(at, torch.autograd.grad(compute_loss(at, data, rows), list(at.values())), strict=True))


def move(w, direction, by):
    """The model ``w`` after a step against ``direction``."""
    return {name: value - by * direction[name] for name, value in w.items()}


def minibatches(data, client, key, epochs=1, batch=4):
    """The rows of each of a client's minibatches."""
    rows, draw = torch.from_numpy(data.rows(client, "train")), rng.generator(0, *key, client)
    for _ in range(epochs):
        yield from (part for part in rows[torch.from_numpy(draw.permutation(len(rows)))].split(batch) if len(part))


def sample_counts(run, cohort):
    """The number of training samples of each client."""
    return run.federation.sizes("train")[cohort].tolist()


K = 3
"""The number of neighbours that vote."""


def predict_with_neighbours(stored, labels, z, logits, k=K):
    """Distances to the nearest stored sample (n,), votes of the neighbours and answers of the network (n, C) each."""
    squared = ((z[:, None] - stored[None]) ** 2).sum(axis=2)
    near = np.argsort(squared, axis=1, kind="stable")[:, :k]
    distance = np.sqrt(np.take_along_axis(squared, near, axis=1))
    weight = np.exp(-distance)
    votes = np.stack([(weight * (labels[near] == c)).sum(axis=1) for c in range(worlds.CLASSES)], axis=1)
    h = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return distance[:, 0], votes / weight.sum(axis=1, keepdims=True), h


def unpack_graph(run, state):
    """Whether client i used the model of client j in a round, (rounds, m, m)."""
    return client_relations.unpack_graph(state["graph"].numpy(), len(run.clients))


def train_clients(run, models, clients, t, **options):
    """The models of clients, by client, after local training in round ``t``."""
    return {c: worlds.steps(models[c], run.federation, c, ("sgd", t), **options) for c in clients}


def mean_with(run, models, i, partners):
    """The mean of the models of client ``i`` and its partners."""
    return mean_members(run, models, [i, *partners])


def draw_ids(run, key, among, count):
    """The clients that a run draws by a key."""
    return peers.draw_ids(run.rng(*key), np.asarray(among), count).tolist()


def minibatch_samples(data, client, key, epochs=1):
    """The samples and labels of each of a client's minibatches."""
    return ((data.inputs(rows), data.y[rows]) for rows in minibatches(data, client, key, epochs))


def representation(w, x):
    """The representation (n, d) of samples by the ``mlp`` with parameters ``w``."""
    hidden = torch.relu(x @ w["body.1.weight"].T + w["body.1.bias"])
    return torch.relu(hidden @ w["body.3.weight"].T + w["body.3.bias"])


def descend(w, loss, lr):
    """One step of gradient descent on tensors, in place."""
    for value, grad in zip(w, torch.autograd.grad(loss, w), strict=True):
        value.data -= lr * grad


def require_grad(params):
    return {name: value.clone().requires_grad_() for name, value in params.items()}


def detach(params):
    return {name: value.detach() for name, value in params.items()}


def body_of(params):
    return parameters.part(params, "body.")


def head_of(params):
    return parameters.part(params, "head.")


def sent_names(run):
    """The names of parameters that are sent from now on."""
    names, count = set(), run.send
    run.send = lambda link, params, copies=1: (names.update(params), count(link, params, copies))
    return names
