"""A compiled loop over the steps of clients whose networks are chains of linear layers and ReLU, by plain SGD.

A client takes many steps one after the other, so that its weights stay in the cache. What it computes depends on no
other client, and samples of weight zero at the end of a batch take no time.
"""

from __future__ import annotations

import math

import numpy as np

from pflcli.engine.cpu.compiler import compiled
from pflcli.engine.cpu.kernels import Array
from pflcli.engine.cpu.pooled import shift_and_rectify, shift_and_rectify_backward
from pflcli.engine.cpu.products import product, product_by_rows

Arrays = tuple[Array, ...]


@compiled
def _cross_entropy(logits: Array, y: Array, weight: Array, scale: float, grad: Array) -> float:
    """Return the weighted loss of logits (n, C), and write ``scale`` times the gradients by them."""
    loss = 0.0
    for sample in range(len(logits)):
        row, by_row, own, true = logits[sample], grad[sample], weight[sample], y[sample]
        top, total = row.max(), 0.0
        for j in range(len(row)):
            by_row[j] = math.exp(row[j] - top)
            total += by_row[j]
        loss += own * (math.log(total) + top - row[true])
        for j in range(len(row)):
            by_row[j] *= scale * own / total
        by_row[true] -= scale * own
    return loss


@compiled
def _of(values: Array, place: int) -> Array:
    """Return the values of a client, or the only ones."""
    own: Array = values[place if len(values) > 1 else 0]
    return own


@compiled
def _pull(weights: Array, anchor: Array, part: float, drift: Array, rate: float) -> None:
    """Move weights by a part of the way to the anchor, and against the drift by the rate, if there are any."""
    part, rate = weights.dtype.type(part), weights.dtype.type(rate)
    for i in range(len(anchor)):
        weights[i] += part * (anchor[i] - weights[i])
    for i in range(len(drift)):
        weights[i] -= rate * drift[i]


@compiled
def steps(
    layers: Array,
    parameters: Arrays,
    trained: Array,
    anchor: Arrays,
    drift: Arrays,
    place: Array,
    x: Array,
    y: Array,
    weight: Array,
    rate: Array,
    part: Array,
    losses: Array,
) -> None:
    """Take t steps, the one at s on the minibatch ``x[s]`` (n, d) of the client at ``place[s]``; write the losses (t,).

    A row of ``layers`` holds the numbers of inputs and outputs of a layer, and whether a ReLU follows. ``parameters``
    (m, ...) are its weights and biases (1, 0 if there are none), then those of the next layer, and so on; ``trained``
    says which change. A step first moves them by ``part[s]`` of the way to the ``anchor`` (1 or m, ...), and by
    ``rate[s]`` against the ``drift`` (m, ...); (1, 0) is no anchor and no drift. Samples are weighted by ``weight``
    (t, n).
    """
    deepest, width = len(layers) - 1, x.shape[1] * layers[:, 1].max()
    values, grads = np.empty((len(layers), width), x.dtype), np.empty((len(layers), width), x.dtype)
    lowest = 0
    while lowest < deepest and not (trained[2 * lowest] or trained[2 * lowest + 1]):
        lowest += 1
    for s in range(len(place)):
        client, n = place[s], x.shape[1]
        while n and weight[s, n - 1] == 0:
            n -= 1
        samples = x[s].reshape(-1)
        for index in range(deepest + 1):
            inputs, outputs = layers[index, 0], layers[index, 1]
            w, b = _of(parameters[2 * index], client), _of(parameters[2 * index + 1], client)
            h, out = values[index - 1] if index else samples, values[index]
            product_by_rows((n, outputs, inputs), h, 0, inputs, w, 0, inputs, out, 0, outputs, 0)
            bias = b if len(b) else np.zeros(outputs, x.dtype)
            shift_and_rectify(out[: n * outputs].reshape(n, outputs), bias, layers[index, 2] == 1)
        size, classes = n * layers[deepest, 1], layers[deepest, 1]
        logits, by_logits = values[deepest, :size].reshape(n, classes), grads[deepest, :size].reshape(n, classes)
        losses[s] = _cross_entropy(logits, y[s], weight[s], -rate[s], by_logits)
        for index in range(deepest, lowest - 1, -1):
            inputs, outputs = layers[index, 0], layers[index, 1]
            w, b = _of(parameters[2 * index], client), _of(parameters[2 * index + 1], client)
            h, grad, by_bias = values[index - 1] if index else samples, grads[index], np.empty(outputs, x.dtype)
            out, by_out = values[index, : n * outputs], grad[: n * outputs].reshape(n, outputs)
            shift_and_rectify_backward(out.reshape(n, outputs), layers[index, 2] == 1, by_out, by_bias)
            if index > lowest:  # before the weights change
                product((n, inputs, outputs), grad, 0, outputs, 1, w, 0, inputs, grads[index - 1], 0, inputs, 0)
            if trained[2 * index]:
                _pull(w, _of(anchor[2 * index], client), part[s], _of(drift[2 * index], client), rate[s])
                product((outputs, inputs, n), grad, 0, 1, outputs, h, 0, inputs, w, 0, inputs, 1)
            if trained[2 * index + 1]:
                _pull(b, _of(anchor[2 * index + 1], client), part[s], _of(drift[2 * index + 1], client), rate[s])
                b += by_bias
