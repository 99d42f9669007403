"""Compiled steps of FedDBE by clients whose networks are chains of linear layers, see ``feddbe.py``.

A memory m in front of the head W is a shift W m of its outputs, and adds to the gradient by W that by this shift times
m.
"""

from __future__ import annotations

import numpy as np

from pflcli.accelerated.chain_loops import backward_one, counted, forward_one, lowest, of_client, widest
from pflcli.accelerated.compiler import compiled
from pflcli.accelerated.kernels import Array, add, cross_entropy
from pflcli.accelerated.products import product, product_by_rows

Arrays = tuple[Array, ...]


@compiled
def _pull(z: Array, weight: Array, consensus: Array, kappa: float, rate: float, to_z: Array) -> float:
    """Return kappa / 2 times the mean square of mean(z) - consensus; write minus the rate times its gradient.

    Samples z (n, d) are weighted by ``weight`` (n,).
    """
    apart, total, scale = np.zeros_like(consensus), 0.0, z.dtype.type(-rate * kappa / len(consensus))
    for i in range(len(z)):
        row, own = z[i], weight[i]
        for j in range(len(apart)):
            apart[j] += own * row[j]
    for j in range(len(apart)):
        apart[j] -= consensus[j]
        total += apart[j] * apart[j]
        apart[j] *= scale
    for i in range(len(z)):
        to_row, own = to_z[i], weight[i]
        for j in range(len(apart)):
            to_row[j] = own * apart[j]
    return kappa / 2 * total / len(consensus)


@compiled
def steps(
    layers: Array,
    parameters: Arrays,
    trained: Array,
    memories: Array,
    consensus: Array,
    kappa: float,
    place: Array,
    x: Array,
    y: Array,
    weight: Array,
    rate: Array,
    none: Arrays,
    losses: Array,
) -> None:
    """Take t steps of clients and their ``memories`` (m, d), see ``chain_loops.steps``.

    The head is the last layer. ``none`` are empty arrays (1, 0).
    """
    most, body, d, classes = x.shape[1], len(layers) - 1, layers[-1, 0], layers[-1, 1]
    shape = len(layers), most * widest(layers)
    values, grads = np.empty(shape, x.dtype), np.empty(shape, x.dtype)
    to_z, step = np.empty(most * d, x.dtype), np.empty(d, x.dtype)
    shift, by_shift = np.empty(classes, x.dtype), np.empty(classes, x.dtype)
    for s in range(len(place)):
        client, samples, n = place[s], x[s].reshape(-1), counted(weight, s, most)
        memory, head = of_client(memories, client), of_client(parameters[2 * body], client)
        forward_one(layers, parameters, client, samples, 0, n, 0, values)
        product_by_rows((1, classes, d), memory, 0, d, head, 0, d, shift, 0, classes, 0)
        logits, by_logits = values[-1, : n * classes].reshape(n, classes), grads[-1, : n * classes].reshape(n, classes)
        for i in range(n):
            add(logits[i], shift)
        loss = cross_entropy(logits, y[s], weight[s], -rate[s], by_logits)
        z = (values[body - 1] if body else samples)[: n * d].reshape(n, d)
        losses[s] = loss + _pull(z, weight[s], consensus, kappa, rate[s], to_z[: n * d].reshape(n, d))
        by_shift[:] = 0
        for i in range(n):
            add(by_shift, by_logits[i])
        product((1, d, classes), by_shift, 0, classes, 1, head, 0, d, step, 0, d, 0)
        no_moves = none, 0.0, none, 0.0
        batch, pulled = (samples, 0, n, values, grads), (body, to_z, lowest(trained))
        backward_one(layers, parameters, client, *batch, *pulled, trained, *no_moves, parameters, True)
        if trained[2 * body]:
            product((classes, d, 1), by_shift, 0, 1, 1, memory, 0, d, head, 0, d, 1)
        add(memory, step)
