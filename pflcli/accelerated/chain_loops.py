"""Compiled loops over clients whose networks are chains of linear layers and ReLU: passes, and steps of plain SGD.

A client takes many steps one after the other, so that its weights stay in the cache. What it computes depends on no
other client, and in steps samples of weight zero at the end of a batch take no time.
"""

from __future__ import annotations

import numpy as np

from pflcli.accelerated.compiler import compiled
from pflcli.accelerated.kernels import Array, add, cross_entropy, pull
from pflcli.accelerated.pooled import shift_and_rectify, shift_and_rectify_backward
from pflcli.accelerated.products import product, product_by_rows

Arrays = tuple[Array, ...]


@compiled
def of_client(values: Array, place: int) -> Array:
    """Return the values of a client, or the only ones."""
    own: Array = values[place if len(values) > 1 else 0]
    return own


@compiled
def counted(weight: Array, place: int, n: int) -> int:
    """Return how many samples of a batch of ``n`` lie before those of weight zero at its end; all without weights."""
    while n and len(weight) and weight[place, n - 1] == 0:
        n -= 1
    return n


@compiled
def widest(layers: Array) -> int:
    """Return the largest number of outputs. This, and sums in loops, take a tenth of the time of NumPy's to compile."""
    most = 0
    for layer in layers:
        most = max(most, layer[1])
    return most


@compiled
def forward_one(
    layers: Array, parameters: Arrays, client: int, x: Array, at: int, n: int, first: int, values: Array
) -> None:
    """Write the outputs of layers for the ``n`` samples of ``x`` from the one at ``at`` on into ``values`` (L, ...).

    Those of the layers below the ``first`` are there.
    """
    for index in range(first, len(layers)):
        inputs, outputs = layers[index, 0], layers[index, 1]
        w, b = of_client(parameters[2 * index], client), of_client(parameters[2 * index + 1], client)
        h, out = values[index - 1] if index else x, values[index]
        product_by_rows((n, outputs, inputs), h, at * inputs, inputs, w, 0, inputs, out, at * outputs, outputs, 0)
        rows = out[at * outputs : (at + n) * outputs].reshape(n, outputs)
        shift_and_rectify(rows, b if len(b) else np.zeros(outputs, x.dtype), layers[index, 2] == 1)


@compiled
def lowest(trained: Array) -> int:
    """Return the lowest layer of which something is ``trained``, see ``backward``."""
    index = 0
    while 2 * index < len(trained) and not (trained[2 * index] or trained[2 * index + 1]):
        index += 1
    return index


@compiled
def backward_one(
    layers: Array,
    parameters: Arrays,
    client: int,
    x: Array,
    at: int,
    n: int,
    values: Array,
    grads: Array,
    body: int,
    z: Array,
    last: int,
    trained: Array,
    anchor: Arrays,
    part: float,
    drift: Arrays,
    rate: float,
    targets: Arrays,
    adds: bool,
) -> None:
    """Write the gradients of parameters into ``targets``, or pull these and add them if wanted.

    The last row of ``grads`` (L, ...) has those by the logits of the ``n`` samples. Those by the outputs of layers
    down to the ``last`` are written there, before ReLU. Unless it is empty, ``z`` has further gradients by the inputs
    of the layer ``body``.
    """
    more = 1 if adds else 0
    for index in range(len(layers) - 1, last - 1, -1):
        inputs, outputs = layers[index, 0], layers[index, 1]
        h, grad, by_bias = values[index - 1] if index else x, grads[index], np.empty(outputs, x.dtype)
        out, by_out = values[index, at * outputs : (at + n) * outputs], grad[: n * outputs].reshape(n, outputs)
        shift_and_rectify_backward(out.reshape(n, outputs), layers[index, 2] == 1, by_out, by_bias)
        if index > last:  # before the weights change
            w, below = of_client(parameters[2 * index], client), grads[index - 1]
            product((n, inputs, outputs), grad, 0, outputs, 1, w, 0, inputs, below, 0, inputs, 0)
            if index == body and len(z):
                add(below, z[at * inputs : (at + n) * inputs])
        for position in range(2 * index, 2 * index + 2):
            if not trained[position]:
                continue
            target = of_client(targets[position], client)
            if adds:
                pull(target, of_client(anchor[position], client), part, of_client(drift[position], client), rate)
            if position % 2 == 0:
                product((outputs, inputs, n), grad, 0, 1, outputs, h, at * inputs, inputs, target, 0, inputs, more)
            else:
                if not adds:
                    target[:] = 0
                add(target, by_bias)


@compiled
def forward(layers: Array, parameters: Arrays, n: int, x: Array, weight: Array, values: Array) -> None:
    """Write the outputs of each layer of a stack of chains into ``values`` (L, ...), for ``x`` (a, n, d) as a row.

    Those of samples of ``weight`` (a, n) zero at the end of a batch are zero; (0, 0) is no weight. See ``steps`` for
    ``layers`` and ``parameters``.
    """
    for client in range(len(x) // (n * layers[0, 0])):
        count = counted(weight, client, n)
        forward_one(layers, parameters, client, x, client * n, count, 0, values)
        for index in range(len(layers)):
            outputs = layers[index, 1]
            values[index, (client * n + count) * outputs : (client + 1) * n * outputs] = 0


@compiled
def backward(
    layers: Array,
    parameters: Arrays,
    n: int,
    x: Array,
    weight: Array,
    values: Array,
    logits: Array,
    body: int,
    z: Array,
    trained: Array,
    none: Arrays,
    targets: Arrays,
    adds: bool,
) -> None:
    """Write the gradients by those parameters of a stack that are ``trained`` into ``targets`` (a, ...), or add them.

    ``x``, ``weight`` and ``values`` are those of ``forward``. ``logits`` (a, n, C) are gradients by the logits, ``z``
    those by the inputs of the layer ``body`` or empty, each as a row; ``none`` are empty arrays (1, 0).
    """
    classes, zero = layers[-1, 1], x.dtype.type(0)
    grads = np.empty((len(layers), n * widest(layers)), x.dtype)
    for client in range(len(x) // (n * layers[0, 0])):
        at, count = client * n, counted(weight, client, n)
        own = logits[at * classes : (at + count) * classes]
        for i in range(len(own)):
            grads[-1, i] = own[i]
        backward_one(
            layers,
            parameters,
            client,
            x,
            at,
            count,
            values,
            grads,
            body,
            z,
            lowest(trained),
            trained,
            none,
            zero,
            none,
            zero,
            targets,
            adds,
        )


@compiled
def steps(
    layers: Array,
    parameters: Arrays,
    targets: Arrays,
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
    (m, ...) are its weights and biases (1, 0 if there are none), then those of the next layer, and so on. The gradient
    there changes those of the ``targets`` (m, ...), which may be the same, that ``trained`` names. A step first moves
    them by ``part[s]`` of the way to the ``anchor`` (1 or m, ...), and by ``rate[s]`` against the ``drift`` (m, ...);
    (1, 0) is no anchor and no drift. Samples are weighted by ``weight`` (t, n).
    """
    width, classes, none = x.shape[1] * widest(layers), layers[-1, 1], np.empty(0, x.dtype)
    values, grads = np.empty((len(layers), width), x.dtype), np.empty((len(layers), width), x.dtype)
    for s in range(len(place)):
        client, samples, n = place[s], x[s].reshape(-1), counted(weight, s, x.shape[1])
        forward_one(layers, parameters, client, samples, 0, n, 0, values)
        logits, by_logits = values[-1, : n * classes].reshape(n, classes), grads[-1, : n * classes].reshape(n, classes)
        losses[s] = cross_entropy(logits, y[s], weight[s], -rate[s], by_logits)
        backward_one(
            layers,
            parameters,
            client,
            samples,
            0,
            n,
            values,
            grads,
            -1,
            none,
            lowest(trained),
            trained,
            anchor,
            part[s],
            drift,
            rate[s],
            targets,
            True,
        )
