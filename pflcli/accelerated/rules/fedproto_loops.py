"""Compiled steps of FedProto by clients whose networks are chains of linear layers, see ``fedproto.py``."""

from __future__ import annotations

import numpy as np

from pflcli.accelerated.chain_loops import backward_one, counted, forward_one, lowest, widest
from pflcli.accelerated.compiler import compiled
from pflcli.accelerated.kernels import Array, cross_entropy

Arrays = tuple[Array, ...]


@compiled
def _pull(z: Array, y: Array, weight: Array, means: Array, known: Array, lam: float, rate: float, to_z: Array) -> float:
    """Return lam times the mean squares of z - means[y] of ``known`` classes; write minus the rate times its gradient.

    Samples z (n, d) are weighted by ``weight`` (n,).
    """
    loss = 0.0
    for i in range(len(z)):
        row, mean, to_row = z[i], means[y[i]], to_z[i]
        share, total = lam * weight[i] * known[y[i]] / len(row), 0.0
        scale = z.dtype.type(-2 * rate * share)
        for j in range(len(row)):
            apart = row[j] - mean[j]
            total += apart * apart
            to_row[j] = scale * apart
        loss += share * total
    return loss


@compiled
def steps(
    layers: Array,
    parameters: Arrays,
    trained: Array,
    body: int,
    means: Array,
    known: Array,
    lam: float,
    place: Array,
    x: Array,
    y: Array,
    weight: Array,
    rate: Array,
    none: Arrays,
    losses: Array,
) -> None:
    """Take t steps of clients near the prototypes ``means`` (C, d) of ``known`` classes, see ``chain_loops.steps``.

    Representations are the inputs of the layer ``body``. ``none`` are empty arrays (1, 0).
    """
    most, d, classes = x.shape[1], means.shape[1], layers[-1, 1]
    shape = len(layers), most * widest(layers)
    values, grads, to_z = np.empty(shape, x.dtype), np.empty(shape, x.dtype), np.empty(most * d, x.dtype)
    for s in range(len(place)):
        client, samples, n = place[s], x[s].reshape(-1), counted(weight, s, most)
        forward_one(layers, parameters, client, samples, 0, n, 0, values)
        logits, by_logits = values[-1, : n * classes].reshape(n, classes), grads[-1, : n * classes].reshape(n, classes)
        loss = cross_entropy(logits, y[s], weight[s], -rate[s], by_logits)
        z = (values[body - 1] if body else samples)[: n * d].reshape(n, d)
        losses[s] = loss + _pull(z, y[s], weight[s], means, known, lam, rate[s], to_z[: n * d].reshape(n, d))
        no_moves = none, 0.0, none, 0.0
        batch, pulled = (samples, 0, n, values, grads), (body, to_z, lowest(trained))
        backward_one(layers, parameters, client, *batch, *pulled, trained, *no_moves, parameters, True)
