"""Compiled steps of FedRoD by clients whose networks are chains of linear layers, see ``fedrod.py``."""

from __future__ import annotations

import numpy as np

from pflcli.accelerated.chain_loops import backward_one, counted, forward_one, lowest, of_client, widest
from pflcli.accelerated.compiler import compiled
from pflcli.accelerated.kernels import Array, add, cross_entropy
from pflcli.accelerated.products import product, product_by_rows

Arrays = tuple[Array, ...]


@compiled
def _personal_step(
    z: Array, logits: Array, y: Array, weight: Array, rate: float, head: Array, bias: Array, sums: Array, grads: Array
) -> float:
    """Take a step of a client's own head on representations z as a row, and return the loss of it and ``logits``."""
    n, classes = logits.shape
    d = len(head) // classes
    personal, by_personal = sums[: n * classes], grads[: n * classes]
    product_by_rows((n, classes, d), z, 0, d, head, 0, d, personal, 0, classes, 0)
    rows, by_rows = personal.reshape(n, classes), by_personal.reshape(n, classes)
    for i in range(n):
        add(rows[i], bias)
        add(rows[i], logits[i])
    loss = cross_entropy(rows, y, weight, -rate, by_rows)
    product((classes, d, n), by_personal, 0, 1, classes, z, 0, d, head, 0, d, 1)
    for i in range(n if len(bias) else 0):
        add(bias, by_rows[i])
    return float(loss)


@compiled
def steps(
    layers: Array,
    parameters: Arrays,
    trained: Array,
    heads: Array,
    biases: Array,
    offsets: Array,
    place: Array,
    x: Array,
    y: Array,
    weight: Array,
    rate: Array,
    none: Arrays,
    losses: Array,
) -> None:
    """Take t steps of clients and their own ``heads`` (m, C d) with ``biases`` (m, C), see ``chain_loops.steps``.

    The generic head is the last layer, to whose outputs its loss adds ``offsets`` (m, C). ``none`` are empty (1, 0).
    """
    most, body, classes, no_z = x.shape[1], len(layers) - 1, layers[-1, 1], none[0][0]
    shape = len(layers), most * widest(layers)
    values, grads = np.empty(shape, x.dtype), np.empty(shape, x.dtype)
    sums, by_sums = np.empty(most * classes, x.dtype), np.empty(most * classes, x.dtype)
    for s in range(len(place)):
        client, samples, n = place[s], x[s].reshape(-1), counted(weight, s, most)
        forward_one(layers, parameters, client, samples, 0, n, 0, values)
        z, logits = values[body - 1] if body else samples, values[-1, : n * classes].reshape(n, classes)
        head, bias, target = of_client(heads, client), of_client(biases, client), (y[s], weight[s], rate[s])
        personal = _personal_step(z, logits, *target, head, bias, sums, by_sums)
        for i in range(n):
            add(logits[i], of_client(offsets, client))
        losses[s] = personal + cross_entropy(
            logits, y[s], weight[s], -rate[s], grads[-1, : n * classes].reshape(n, classes)
        )
        no_moves = none, 0.0, none, 0.0
        batch, above = (samples, 0, n, values, grads), (body, no_z, lowest(trained))
        backward_one(layers, parameters, client, *batch, *above, trained, *no_moves, parameters, True)
