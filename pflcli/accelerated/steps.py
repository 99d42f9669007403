"""Trains chains of linear layers by plain SGD in compiled loops, which take all steps of one client after the other.

The weights of a small multilayer perceptron stay in the cache of a core; those of a stack would not. ``STEPS`` lists
the gradient rules of methods that have such loops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli import parameters
from pflcli.accelerated.chains import (
    backward_one,
    client_row,
    count_samples,
    forward_one,
    layer_arrays,
    layer_table,
    lowest_trained_layer,
    max_outputs,
    take_steps,
    trained_mask,
)
from pflcli.accelerated.compiler import Array, Arrays, compiled
from pflcli.accelerated.loops import add, cross_entropy, shift_and_rectify
from pflcli.accelerated.products import product, product_by_rows
from pflcli.engine.federation import Federation
from pflcli.engine.linear_chain import Layer
from pflcli.engine.local_sgd import LEAST_WEIGHT, LocalSGD, is_stacked
from pflcli.parameters import Params, Stacked


@dataclass(frozen=True)
class Chain:
    """The models of clients whose network is a chain of linear layers, which the loops train in place.

    See ``take_steps`` for ``layers``, ``parameters`` and ``trained``. ``models`` (m, ...) are all tensors of the
    clients; ``own`` (m, ...) and ``shared`` are constants.
    """

    layers: NDArray[np.int64]
    parameters: tuple[NDArray[np.float32], ...]
    trained: NDArray[np.bool_]
    models: Stacked
    own: Stacked
    shared: Mapping[str, Tensor]

    @property
    def none(self) -> Arrays:
        """Return an empty array (1, 0) for each of the parameters."""
        return (np.empty((1, 0), np.float32),) * len(self.parameters)


class Minibatches(NamedTuple):
    """The samples ``x`` (t, n, d), ``y`` (t, n) of t steps, each of the client at ``place`` (t,) with a ``rate`` (t,).

    The ``weight`` (t, n) of samples is zero for padding at the end. Compiled loops take a plain tuple of these arrays.
    """

    place: NDArray[np.int64]
    x: NDArray[np.float32]
    y: NDArray[np.int64]
    weight: NDArray[np.float32]
    rate: NDArray[np.float32]


_SAMPLE_BYTES = 2 << 20
"""Bytes of samples in one call of a loop."""


@dataclass(frozen=True)
class _Schedule:
    """All steps of the clients, one client after the other.

    ``place`` (t,) is the place of the step's client, ``rows`` (t, n) are rows of the federation, ``weight`` (t, n) are
    the weights of samples and zero for padding at the end, ``rate`` (t,) is the learning rate. ``counts`` (m,) is the
    number of steps of each client.
    """

    place: NDArray[np.int64]
    rows: NDArray[np.int64]
    weight: NDArray[np.float32]
    rate: NDArray[np.float32]
    counts: NDArray[np.int64]


def train(
    chain: Sequence[Layer],
    data: Federation,
    clients: NDArray[np.int64],
    draws: Sequence[np.random.Generator],
    places: NDArray[np.int64],
    start: Params | Stacked,
    out: Stacked,
    plan: LocalSGD,
) -> NDArray[np.float64]:
    """Train ``clients`` (m,) into ``places`` (m,) of ``out``, and return their mean losses (m,).

    ``draws`` are the clients' generators of minibatches. ``start`` is one model, or contains the clients' models at
    ``places``, as ``plan`` contains their constants.
    """

    like = {name: value[0] for name, value in out.items()}
    own_start = is_stacked(start, like)
    for name, value in out.items():
        for place in places.tolist():
            value[place].copy_(start[name][place] if own_start else start[name])
    layers, own = layer_table(chain, like), layer_arrays(chain, out)
    assert all(value.is_contiguous() for value in out.values())  # so that the arrays share their memory
    trained = trained_mask(chain, [name for name in like if name.startswith(plan.trainable)])
    models = Chain(layers, own, trained, out, plan.own, plan.shared)
    rule = plan.gradient
    take = partial(STEPS[registered_name(rule)], rule) if rule else _descent(chain, plan, like)
    steps = _schedule(data, clients, draws, places, plan)
    losses = np.empty(len(steps.place))
    at_once = max(1, _SAMPLE_BYTES // (4 * steps.rows.shape[1] * int(layers[0, 0])))
    for first in range(0, len(losses), at_once):
        part = slice(first, first + at_once)
        rows = torch.from_numpy(steps.rows[part])
        x = data.inputs(rows.flatten()).numpy().reshape(*rows.shape, -1)
        batches = Minibatches(steps.place[part], x, data.y[rows].numpy(), steps.weight[part], steps.rate[part])
        losses[part] = take(models, batches)
    sums = np.bincount(np.repeat(np.arange(len(clients)), steps.counts), losses, len(clients))
    return np.asarray(sums / np.maximum(steps.counts, 1))


def _descent(
    chain: Sequence[Layer], plan: LocalSGD, like: Params
) -> Callable[[Chain, Minibatches], NDArray[np.float64]]:
    """Return the function that takes steps along the gradients of the cross-entropy, and returns their losses (t,)."""

    anchor, pull = plan.prox or ({}, 0.0)
    pulls = layer_arrays(chain, anchor, is_stacked(anchor, like)) if pull else layer_arrays(chain, {})
    drift = layer_arrays(chain, plan.own if plan.adds_own else {})

    def steps(models: Chain, batches: Minibatches) -> NDArray[np.float64]:
        losses, own, part = np.empty(len(batches.place)), models.parameters, batches.rate * np.float32(pull)
        take_steps(models.layers, own, own, models.trained, pulls, drift, part, tuple(batches), losses)
        return losses

    return steps


def _schedule(
    data: Federation,
    clients: NDArray[np.int64],
    draws: Sequence[np.random.Generator],
    places: NDArray[np.int64],
    plan: LocalSGD,
) -> _Schedule:
    """Return the steps of the clients in their order."""
    batches: list[NDArray[np.int64]] = []
    weights: list[NDArray[np.float32]] = []
    rates: list[float] = []
    counts = []
    for client, place, draw in zip(clients, places.tolist(), draws, strict=True):
        own, before = data.rows(int(client), *plan.splits), len(batches)
        for batch, rate in plan.schedule(place, len(own), draw, join_single=False):
            batches.append(own[batch])
            rates.append(rate)
            if plan.sample_weights is not None:
                weights.append(np.maximum(plan.sample_weights[place].numpy()[batch], LEAST_WEIGHT))
        counts.append(len(batches) - before)
    sizes = np.asarray([len(batch) for batch in batches], np.int64)
    is_sample = np.arange(sizes.max(initial=1)) < sizes[:, None]
    # Pad with a sample of the client, which is in memory anyway.
    rows = np.repeat(np.asarray([batch[0] for batch in batches], np.int64)[:, None], is_sample.shape[1], axis=1)
    weight = (is_sample / np.maximum(sizes, 1)[:, None]).astype(np.float32)
    if batches:
        rows[is_sample] = np.concatenate(batches)
    if weights:
        weight[is_sample] *= np.concatenate(weights)
    return _Schedule(np.repeat(places, counts), rows, weight, np.asarray(rates, np.float32), np.asarray(counts))


@compiled
def _descend(
    layers: Array,
    parameters: Arrays,
    client: int,
    samples: tuple[Array, int, int],
    values: Array,
    grads: Array,
    above: tuple[int, Array],
    trained: Array,
    none: Arrays,
) -> None:
    """Add the gradients, which include minus the learning rate, to a client's ``trained`` parameters.

    See ``chains.backward_one`` for the arguments.
    """
    last, move = lowest_trained_layer(trained), (none, 0.0, none, 0.0)
    backward_one(layers, parameters, client, samples, values, grads, above, last, trained, move, parameters, True)


# pFedMe, see ``methods/pfedme.py``. A step goes from w to theta by several inner steps on the same n samples x, and
# then moves w towards theta. Theta of the first layer, the largest, need not be in memory: it is w + a' x, where a (n,
# O) adds up the gradients by the layer's outputs, which are x w' + (x x') a. The squared distance of theta from w is
# the sum of the products of a and (x x') a.


@compiled
def _copy(values: Array, to: Array) -> None:
    for i in range(len(values)):
        to[i] = values[i]


@compiled
def _first_layer(layers: Array, bias: Array, n: int, sums: Array, gram: Array, a: Array, out: Array) -> None:
    """Write the outputs of the first layer at theta into ``out``, given ``sums`` = x w' and ``gram`` = x x'."""
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
    """Take ``count`` steps from w to theta, and return the loss at theta, which is in memory from layer ``first`` on.

    See ``pfedme_steps`` for the arguments, and the comment above for ``sums``, ``gram`` and ``a`` of the first layer.
    """
    n, outputs, classes = len(y), layers[0, 1], layers[-1, 1]
    logits, by_logits = values[-1, : n * classes].reshape(n, classes), grads[-1, : n * classes].reshape(n, classes)
    last, keep, loss = 0 if first else lowest_trained_layer(trained), x.dtype.type(1 - lam * rate), 0.0
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
            (x, 0, n),
            values,
            grads,
            (-1, none[0][0]),
            last,
            trained,
            (parameters, lam * rate, none, 0.0),
            theta,
            True,
        )
        for i in range(first * n * outputs):
            a[i] = keep * a[i] + grads[0, i]
    return loss


@compiled
def _move(weights: Array, theta: Array, part: float) -> float:
    """Move weights by a part of the way to theta, and return the squared length of the whole way."""
    share, total = weights.dtype.type(part), weights.dtype.type(0)
    for i in range(len(weights)):
        difference = theta[i] - weights[i]
        total += difference * difference
        weights[i] += share * difference
    return float(total)


@compiled
def _move_first_layer(
    layers: Array, w: Array, n: int, x: Array, gram: Array, a: Array, sums: Array, part: float
) -> float:
    """Do the same as ``_move`` with the weights of the first layer. Overwrite ``a`` and ``sums``."""
    inputs, outputs = layers[0, 0], layers[0, 1]
    product((n, outputs, n), gram, 0, n, 1, a, 0, outputs, sums, 0, outputs, 0)
    share, total = a.dtype.type(part), a.dtype.type(0)
    for i in range(n * outputs):
        total += a[i] * sums[i]
        a[i] *= share
    product((outputs, inputs, n), a, 0, 1, outputs, x, 0, inputs, w, 0, inputs, 1)
    return float(total)


@compiled
def pfedme_steps(
    layers: Array,
    parameters: Arrays,
    theta: Arrays,
    trained: Array,
    batches: tuple[Array, Array, Array, Array, Array],
    lam: float,
    inner_rate: float,
    count: int,
    none: Arrays,
    losses: Array,
) -> None:
    """Take t steps, see ``take_steps``. Each takes ``count`` inner steps to theta and moves w towards it.

    ``theta`` is memory for the weights and biases of one model. ``none`` are empty arrays (1, 0).
    """
    place, x, y, weight, rate = batches
    most, inputs, outputs = x.shape[1], layers[0, 0], layers[0, 1]
    width, rank = most * max_outputs(layers), min(most, inputs)
    values, grads = np.empty((len(layers), width), x.dtype), np.empty((len(layers), width), x.dtype)
    sums, a = np.empty(rank * outputs, x.dtype), np.empty(rank * outputs, x.dtype)
    gram, own = np.empty(rank * rank, x.dtype), np.empty_like(trained)
    _copy(trained, own)
    for s in range(len(place)):
        client, samples, n = place[s], x[s].reshape(-1), count_samples(weight, s, most)
        w, part = client_row(parameters[0], client), rate[s] * lam
        # With many samples, products with x x' take longer than products with the weights of theta.
        first = 1 if trained[0] and n * (inputs + count * outputs) <= count * inputs * outputs else 0
        own[0] = trained[0] and not first
        if first:
            product_by_rows((n, outputs, inputs), samples, 0, inputs, w, 0, inputs, sums, 0, outputs, 0)
            product_by_rows((n, n, inputs), samples, 0, inputs, samples, 0, inputs, gram, 0, n, 0)
            a[: n * outputs] = 0
        for position in range(first, len(parameters)):
            _copy(client_row(parameters[position], client), theta[position][0])
        batch, options, buffers = (samples, y[s, :n], weight[s, :n]), (lam, inner_rate, count), (values, grads)
        losses[s] = _approach(
            layers, parameters, theta, own, client, *batch, *options, none, first, sums, gram, a, *buffers
        )
        far = _move_first_layer(layers, w, n, samples, gram, a, sums, part) if first else 0.0
        for position in range(first, len(parameters)):
            far += _move(client_row(parameters[position], client), theta[position][0], part)
        losses[s] += lam / 2 * far


# FedProto, see ``methods/fedproto.py``.
@compiled
def _pull_to_prototypes(
    z: Array, y: Array, weight: Array, means: Array, known: Array, lam: float, rate: float, to_z: Array
) -> float:
    """Return lam times the mean square of z - means[y] over ``known`` classes; write minus the rate times its gradient.

    ``weight`` (n,) are the weights of the representations z (n, d).
    """
    loss = 0.0
    for i in range(len(z)):
        row, mean, to_row = z[i], means[y[i]], to_z[i]
        share, total = lam * weight[i] * known[y[i]] / len(row), 0.0
        scale = z.dtype.type(-2 * rate * share)
        for j in range(len(row)):
            difference = row[j] - mean[j]
            total += difference * difference
            to_row[j] = scale * difference
        loss += share * total
    return loss


@compiled
def fedproto_steps(
    layers: Array,
    parameters: Arrays,
    trained: Array,
    body: int,
    means: Array,
    known: Array,
    lam: float,
    batches: tuple[Array, Array, Array, Array, Array],
    none: Arrays,
    losses: Array,
) -> None:
    """Take t steps of clients that stay near the prototypes ``means`` (C, d) of ``known`` classes, see ``take_steps``.

    Representations are the inputs of the layer ``body``. ``none`` are empty arrays (1, 0).
    """
    place, x, y, weight, rate = batches
    most, d, classes = x.shape[1], means.shape[1], layers[-1, 1]
    shape = len(layers), most * max_outputs(layers)
    values, grads, to_z = np.empty(shape, x.dtype), np.empty(shape, x.dtype), np.empty(most * d, x.dtype)
    for s in range(len(place)):
        client, samples, n = place[s], x[s].reshape(-1), count_samples(weight, s, most)
        forward_one(layers, parameters, client, samples, 0, n, 0, values)
        logits, by_logits = values[-1, : n * classes].reshape(n, classes), grads[-1, : n * classes].reshape(n, classes)
        loss = cross_entropy(logits, y[s], weight[s], -rate[s], by_logits)
        z = (values[body - 1] if body else samples)[: n * d].reshape(n, d)
        losses[s] = loss + _pull_to_prototypes(
            z, y[s], weight[s], means, known, lam, rate[s], to_z[: n * d].reshape(n, d)
        )
        _descend(layers, parameters, client, (samples, 0, n), values, grads, (body, to_z), trained, none)


# FedRoD, see ``methods/fedrod.py``.
@compiled
def _personal_step(
    z: Array, logits: Array, y: Array, weight: Array, rate: float, head: Array, bias: Array, sums: Array, grads: Array
) -> float:
    """Take a step of a client's own head on flattened z, and return the loss of its outputs plus ``logits``."""
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
def fedrod_steps(
    layers: Array,
    parameters: Arrays,
    trained: Array,
    heads: Array,
    biases: Array,
    offsets: Array,
    batches: tuple[Array, Array, Array, Array, Array],
    none: Arrays,
    losses: Array,
) -> None:
    """Take t steps of clients and of their own ``heads`` (m, C d) with ``biases`` (m, C), see ``take_steps``.

    The generic head is the last layer. Its loss adds ``offsets`` (m, C) to its outputs. ``none`` are empty (1, 0).
    """
    place, x, y, weight, rate = batches
    most, body, classes, no_z = x.shape[1], len(layers) - 1, layers[-1, 1], none[0][0]
    shape = len(layers), most * max_outputs(layers)
    values, grads = np.empty(shape, x.dtype), np.empty(shape, x.dtype)
    sums, by_sums = np.empty(most * classes, x.dtype), np.empty(most * classes, x.dtype)
    for s in range(len(place)):
        client, samples, n = place[s], x[s].reshape(-1), count_samples(weight, s, most)
        forward_one(layers, parameters, client, samples, 0, n, 0, values)
        z, logits = values[body - 1] if body else samples, values[-1, : n * classes].reshape(n, classes)
        head, bias, target = client_row(heads, client), client_row(biases, client), (y[s], weight[s], rate[s])
        personal = _personal_step(z, logits, *target, head, bias, sums, by_sums)
        for i in range(n):
            add(logits[i], client_row(offsets, client))
        losses[s] = personal + cross_entropy(
            logits, y[s], weight[s], -rate[s], grads[-1, : n * classes].reshape(n, classes)
        )
        _descend(layers, parameters, client, (samples, 0, n), values, grads, (body, no_z), trained, none)


# FedDBE, see ``methods/feddbe.py``. Adding a memory m to the inputs of the head W shifts its outputs by W m. The
# gradient by W then includes the gradient by this shift times m.
@compiled
def _pull_to_consensus(z: Array, weight: Array, consensus: Array, kappa: float, rate: float, to_z: Array) -> float:
    """Return kappa / 2 times the mean square of mean(z) - consensus; write minus the rate times its gradient.

    ``weight`` (n,) are the weights of the representations z (n, d).
    """
    difference, total, scale = np.zeros_like(consensus), 0.0, z.dtype.type(-rate * kappa / len(consensus))
    for i in range(len(z)):
        row, own = z[i], weight[i]
        for j in range(len(difference)):
            difference[j] += own * row[j]
    for j in range(len(difference)):
        difference[j] -= consensus[j]
        total += difference[j] * difference[j]
        difference[j] *= scale
    for i in range(len(z)):
        to_row, own = to_z[i], weight[i]
        for j in range(len(difference)):
            to_row[j] = own * difference[j]
    return kappa / 2 * total / len(consensus)


@compiled
def feddbe_steps(
    layers: Array,
    parameters: Arrays,
    trained: Array,
    memories: Array,
    consensus: Array,
    kappa: float,
    batches: tuple[Array, Array, Array, Array, Array],
    none: Arrays,
    losses: Array,
) -> None:
    """Take t steps of clients and their ``memories`` (m, d), see ``take_steps``.

    The head is the last layer. ``none`` are empty arrays (1, 0).
    """
    place, x, y, weight, rate = batches
    most, body, d, classes = x.shape[1], len(layers) - 1, layers[-1, 0], layers[-1, 1]
    shape = len(layers), most * max_outputs(layers)
    values, grads = np.empty(shape, x.dtype), np.empty(shape, x.dtype)
    to_z, step = np.empty(most * d, x.dtype), np.empty(d, x.dtype)
    shift, by_shift = np.empty(classes, x.dtype), np.empty(classes, x.dtype)
    for s in range(len(place)):
        client, samples, n = place[s], x[s].reshape(-1), count_samples(weight, s, most)
        memory, head = client_row(memories, client), client_row(parameters[2 * body], client)
        forward_one(layers, parameters, client, samples, 0, n, 0, values)
        product_by_rows((1, classes, d), memory, 0, d, head, 0, d, shift, 0, classes, 0)
        logits, by_logits = values[-1, : n * classes].reshape(n, classes), grads[-1, : n * classes].reshape(n, classes)
        for i in range(n):
            add(logits[i], shift)
        loss = cross_entropy(logits, y[s], weight[s], -rate[s], by_logits)
        z = (values[body - 1] if body else samples)[: n * d].reshape(n, d)
        losses[s] = loss + _pull_to_consensus(z, weight[s], consensus, kappa, rate[s], to_z[: n * d].reshape(n, d))
        by_shift[:] = 0
        for i in range(n):
            add(by_shift, by_logits[i])
        product((1, d, classes), by_shift, 0, classes, 1, head, 0, d, step, 0, d, 0)
        _descend(layers, parameters, client, (samples, 0, n), values, grads, (body, to_z), trained, none)
        if trained[2 * body]:
            product((classes, d, 1), by_shift, 0, 1, 1, memory, 0, d, head, 0, d, 1)
        add(memory, step)


def _pfedme(rule: Any, chain: Chain, batches: Minibatches) -> NDArray[np.float64]:
    losses, theta = np.empty(len(batches.place)), tuple(np.empty_like(value[:1]) for value in chain.parameters)
    pfedme_steps(
        chain.layers,
        chain.parameters,
        theta,
        chain.trained,
        tuple(batches),
        rule.lam,
        rule.rate,
        rule.count,
        chain.none,
        losses,
    )
    return losses


def _fedproto(rule: Any, chain: Chain, batches: Minibatches) -> NDArray[np.float64]:
    losses, shared = np.empty(len(batches.place)), chain.shared
    heads = sum(name.startswith("head.") and value.ndim == 3 for name, value in chain.models.items())
    fedproto_steps(
        chain.layers,
        chain.parameters,
        chain.trained,
        len(chain.layers) - heads,
        shared["mean"].numpy(),
        shared["known"].numpy(),
        float(shared["lam"]),
        tuple(batches),
        chain.none,
        losses,
    )
    return losses


def _fedrod(rule: Any, chain: Chain, batches: Minibatches) -> NDArray[np.float64]:
    losses, own = np.empty(len(batches.place)), parameters.unprefixed(chain.models, "own:")
    fedrod_steps(
        chain.layers,
        chain.parameters,
        chain.trained,
        own["head.weight"].flatten(1).numpy(),
        own["head.bias"].numpy() if "head.bias" in own else chain.none[0],
        chain.own["offsets"].numpy(),
        tuple(batches),
        chain.none,
        losses,
    )
    return losses


def _feddbe(rule: Any, chain: Chain, batches: Minibatches) -> NDArray[np.float64]:
    losses = np.empty(len(batches.place))
    feddbe_steps(
        chain.layers,
        chain.parameters,
        chain.trained,
        chain.models["memory"].numpy(),
        chain.shared["consensus"].numpy(),
        float(chain.shared["kappa"]),
        tuple(batches),
        chain.none,
        losses,
    )
    return losses


STEPS = {"pfedme._Envelope": _pfedme, "fedproto._Rule": _fedproto, "fedrod._Rule": _fedrod, "feddbe._Rule": _feddbe}
"""For each gradient rule, the function that takes its steps of plain SGD and returns their losses (t,)."""


def registered_name(rule: object) -> str:
    """Return the name under which a rule's steps are registered."""
    kind = type(rule)
    return f"{kind.__module__.rpartition('.')[2]}.{kind.__qualname__}"
