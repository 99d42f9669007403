"""Compiled passes of chains of linear layers whose weights are mixtures of models that all clients of a stack share.

The mixtures of the first layer, the largest, and gradients by it lie in the cache, some rows at a time, and never in
memory. What clients share is read once in each direction, for all of them.
"""

from __future__ import annotations

import numpy as np

from pflcli.accelerated.chain_loops import counted, widest
from pflcli.accelerated.compiler import compiled, inlined
from pflcli.accelerated.kernels import Array, cross_entropy
from pflcli.accelerated.pooled import shift_and_rectify, shift_and_rectify_backward
from pflcli.accelerated.products import product, product_by_rows, streamed_product

Arrays = tuple[Array, ...]


@inlined
def _mix(shares: Array, models: Array, stride: int, first: int, count: int, out: Array) -> None:
    """Write the sums of ``count`` columns of ``models`` by ``shares`` (a, m) into the first ones of ``out``."""
    a, m = shares.shape
    to = out.reshape(-1), out.shape[1]
    streamed_product((a, count, m), shares.reshape(-1), (m, 1), models, first, stride, to[0], to[1], 0)


@inlined
def _add_products(gradients: Array, models: Array, stride: int, first: int, count: int, sums: Array) -> None:
    """Add to ``sums`` (a, m) the products of ``count`` columns of ``models`` and the first ones of ``gradients``."""
    (a, m), from_gradients, row = sums.shape, gradients.reshape(-1), gradients.shape[1]
    product_by_rows((a, m, count), from_gradients, 0, row, models, first, stride, sums.reshape(-1), 0, m, 1)


@compiled
def forward(
    layers: Array,
    models: Arrays,
    strides: Array,
    shares: Array,
    n: int,
    x: Array,
    weight: Array,
    mixed: Arrays,
    values: Array,
) -> None:
    """Write the outputs of each layer into ``values`` (L, ...), for ``x`` (a, n, d) as a row; zeros for padding.

    ``models`` are weights and biases of m models, see ``chain_loops.steps``, each as a row in which those of a model
    begin so many numbers behind the one before as ``strides`` says. They are mixed by ``shares`` (a, m) into ``mixed``
    (a, ...). If that has fewer numbers than the first layer has weights, these take turns there.
    """
    for index in range(len(layers)):
        inputs, outputs = layers[index, 0], layers[index, 1]
        h, out, w, b = values[index - 1] if index else x, values[index], mixed[2 * index], mixed[2 * index + 1]
        rows, from_w, stride = w.shape[1] // inputs, w.reshape(-1), strides[2 * index]
        for first in range(0, outputs, rows):
            height = min(rows, outputs - first)
            _mix(shares, models[2 * index], stride, first * inputs, height * inputs, w)
            for client in range(len(shares)):
                size, at, to = (counted(weight, client, n), height, inputs), client * n * inputs, client * n * outputs
                product_by_rows(size, h, at, inputs, from_w, client * w.shape[1], inputs, out, to + first, outputs, 0)
        _mix(shares, models[2 * index + 1], strides[2 * index + 1], 0, b.shape[1], b)
        for client in range(len(shares)):
            own, count = out[client * n * outputs : (client + 1) * n * outputs], counted(weight, client, n)
            bias = b[client] if b.shape[1] else np.zeros(outputs, x.dtype)
            shift_and_rectify(own[: count * outputs].reshape(count, outputs), bias, layers[index, 2] == 1)
            own[count * outputs :] = 0


@compiled
def cross_entropies(logits: Array, y: Array, weight: Array, grads: Array, losses: Array) -> None:
    """Write the loss of each client's logits (a, n, C), see ``kernels.cross_entropy``, and its gradients by them.

    One sample after the other is added: the bits do not depend on how far a batch is padded, and so on the stack.
    """
    for client in range(len(losses)):
        losses[client] = cross_entropy(logits[client], y[client], weight[client], 1.0, grads[client])


@compiled
def backward(
    layers: Array,
    models: Arrays,
    strides: Array,
    by_shares: Array,
    n: int,
    x: Array,
    weight: Array,
    mixed: Arrays,
    values: Array,
    logits: Array,
) -> None:
    """Add the gradients by the shares, inner products of models with gradients by weights, to ``by_shares`` (a, m).

    ``logits`` (a, n, C) are the gradients by the logits, as a row. The other arguments are those of ``forward``;
    gradients by weights take the places of these in ``mixed``.
    """
    a = len(by_shares)
    grads = np.empty((len(layers), a * n * widest(layers)), x.dtype)
    for i in range(len(logits)):
        grads[-1, i] = logits[i]
    for index in range(len(layers) - 1, -1, -1):
        inputs, outputs = layers[index, 0], layers[index, 1]
        h, out, grad, w = values[index - 1] if index else x, values[index], grads[index], mixed[2 * index]
        by_bias, below, from_w = np.empty((a, outputs), x.dtype), grads[index - 1], w.reshape(-1)
        for client in range(a):
            count, at, by = counted(weight, client, n), client * n * inputs, client * n * outputs
            place = slice(by, by + count * outputs)
            of_samples, by_samples = out[place].reshape(count, outputs), grad[place].reshape(count, outputs)
            shift_and_rectify_backward(of_samples, layers[index, 2] == 1, by_samples, by_bias[client])
            if index:
                size = count, inputs, outputs
                product(size, grad, by, outputs, 1, from_w, client * w.shape[1], inputs, below, at, inputs, 0)
        if len(models[2 * index + 1]):
            _add_products(by_bias, models[2 * index + 1], strides[2 * index + 1], 0, outputs, by_shares)
        rows = w.shape[1] // inputs
        for first in range(0, outputs, rows):
            height = min(rows, outputs - first)
            for client in range(a):
                size, at, by = (height, inputs, counted(weight, client, n)), client * n * inputs, client * n * outputs
                product(size, grad, by + first, 1, outputs, h, at, inputs, from_w, client * w.shape[1], inputs, 0)
            _add_products(w, models[2 * index], strides[2 * index], first * inputs, height * inputs, by_shares)
