"""Compiled steps of pFedMe by clients whose networks are chains of linear layers, see ``pfedme.py``.

A step goes from w towards theta and back on the same n samples x. Of the first layer, the largest, theta need not be in
memory: it is w + a' x, where a (n, O) adds up gradients by the layer's sums, which are x w' + (x x') a. The squared
distance of theta from w is the sum of the products of a and (x x') a.
"""

from __future__ import annotations

import numpy as np

from pflcli.accelerated.chain_loops import backward_one, counted, forward_one, lowest, of_client, widest
from pflcli.accelerated.compiler import compiled
from pflcli.accelerated.kernels import Array, cross_entropy
from pflcli.accelerated.pooled import shift_and_rectify
from pflcli.accelerated.products import product, product_by_rows

Arrays = tuple[Array, ...]


@compiled
def _copy(values: Array, to: Array) -> None:
    for i in range(len(values)):
        to[i] = values[i]


@compiled
def _first_layer(layers: Array, bias: Array, n: int, sums: Array, gram: Array, a: Array, out: Array) -> None:
    """Write the outputs of the first layer at theta into ``out``, from its ``sums`` x w' and ``gram`` = x x'."""
    outputs = layers[0, 1]
    _copy(sums[: n * outputs], out)
    product((n, outputs, n), gram, 0, n, 1, a, 0, outputs, out, 0, outputs, 1)
    rows = out[: n * outputs].reshape(n, outputs)
    shift_and_rectify(rows, bias if len(bias) else np.zeros(outputs, out.dtype), layers[0, 2] == 1)


@compiled
def _approach(
    layers: Array,
    parameters: Arrays,
    theta: Arrays,
    trained: Array,
    client: int,
    x: Array,
    y: Array,
    weight: Array,
    lam: float,
    rate: float,
    count: int,
    none: Arrays,
    first: int,
    sums: Array,
    gram: Array,
    a: Array,
    values: Array,
    grads: Array,
) -> float:
    """Take ``count`` steps from w to theta, and return the loss there; theta is in memory from the layer ``first`` on.

    See ``steps`` for what is given, and the module for ``sums``, ``gram`` and ``a`` of the first layer.
    """
    n, outputs, classes = len(y), layers[0, 1], layers[-1, 1]
    logits, by_logits = values[-1, : n * classes].reshape(n, classes), grads[-1, : n * classes].reshape(n, classes)
    last, keep, loss = 0 if first else lowest(trained), x.dtype.type(1 - lam * rate), 0.0
    for k in range(count + 1):
        if first:
            _first_layer(layers, theta[1][0], n, sums, gram, a, values[0])
        forward_one(layers, theta, 0, x, 0, n, first, values)
        loss = cross_entropy(logits, y, weight, -rate, by_logits)
        if k == count:
            break
        backward_one(
            layers,
            theta,
            client,
            x,
            0,
            n,
            values,
            grads,
            -1,
            none[0][0],
            last,
            trained,
            parameters,
            lam * rate,
            none,
            0.0,
            theta,
            True,
        )
        for i in range(first * n * outputs):
            a[i] = keep * a[i] + grads[0, i]
    return loss


@compiled
def _move(weights: Array, theta: Array, part: float) -> float:
    """Move weights by a part of the way to theta, and return the squared length of that."""
    share, total = weights.dtype.type(part), weights.dtype.type(0)
    for i in range(len(weights)):
        apart = theta[i] - weights[i]
        total += apart * apart
        weights[i] += share * apart
    return float(total)


@compiled
def _move_first_layer(
    layers: Array, w: Array, n: int, x: Array, gram: Array, a: Array, sums: Array, part: float
) -> float:
    """Do as ``_move`` with the weights of the first layer; overwrite ``a`` and ``sums``."""
    inputs, outputs = layers[0, 0], layers[0, 1]
    product((n, outputs, n), gram, 0, n, 1, a, 0, outputs, sums, 0, outputs, 0)
    share, total = a.dtype.type(part), a.dtype.type(0)
    for i in range(n * outputs):
        total += a[i] * sums[i]
        a[i] *= share
    product((outputs, inputs, n), a, 0, 1, outputs, x, 0, inputs, w, 0, inputs, 1)
    return float(total)


@compiled
def steps(
    layers: Array,
    parameters: Arrays,
    theta: Arrays,
    trained: Array,
    place: Array,
    x: Array,
    y: Array,
    weight: Array,
    rate: Array,
    lam: float,
    inner_rate: float,
    count: int,
    none: Arrays,
    losses: Array,
) -> None:
    """Take t steps, see ``chain_loops.steps``: each takes ``count`` at ``inner_rate`` to theta and moves w there.

    ``theta`` is memory for the weights and biases of one model, ``none`` are empty arrays (1, 0).
    """
    most, inputs, outputs = x.shape[1], layers[0, 0], layers[0, 1]
    width, rank = most * widest(layers), min(most, inputs)
    values, grads = np.empty((len(layers), width), x.dtype), np.empty((len(layers), width), x.dtype)
    sums, a = np.empty(rank * outputs, x.dtype), np.empty(rank * outputs, x.dtype)
    gram, own = np.empty(rank * rank, x.dtype), np.empty_like(trained)
    _copy(trained, own)
    for s in range(len(place)):
        client, samples, n = place[s], x[s].reshape(-1), counted(weight, s, most)
        w, part = of_client(parameters[0], client), rate[s] * lam
        # With many samples, products with x x' take longer than those with the weights of theta.
        first = 1 if trained[0] and n * (inputs + count * outputs) <= count * inputs * outputs else 0
        own[0] = trained[0] and not first
        if first:
            product_by_rows((n, outputs, inputs), samples, 0, inputs, w, 0, inputs, sums, 0, outputs, 0)
            product_by_rows((n, n, inputs), samples, 0, inputs, samples, 0, inputs, gram, 0, n, 0)
            a[: n * outputs] = 0
        for position in range(first, len(parameters)):
            _copy(of_client(parameters[position], client), theta[position][0])
        batch, options, buffers = (samples, y[s, :n], weight[s, :n]), (lam, inner_rate, count), (values, grads)
        losses[s] = _approach(
            layers, parameters, theta, own, client, *batch, *options, none, first, sums, gram, a, *buffers
        )
        far = _move_first_layer(layers, w, n, samples, gram, a, sums, part) if first else 0.0
        for position in range(first, len(parameters)):
            far += _move(of_client(parameters[position], client), theta[position][0], part)
        losses[s] += lam / 2 * far
