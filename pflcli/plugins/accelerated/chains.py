"""Compiled loops for chains of linear layers and ReLU, such as a multilayer perceptron: passes, and steps of plain SGD.

``take_steps`` takes all steps of a client before those of the next one, so that the client's weights stay in the cache
of a core; the weights of a stack would not fit. ``CompiledChainNetwork`` has the passes for the gradient rules of
methods. No bit of a client depends on other clients. Samples of weight zero at the end of a minibatch take no time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.core.engine.gradients import Outputs, Pass, StackedBatch, differentiate_loss
from pflcli.core.engine.linear_chain import ChainNetwork, Layer
from pflcli.core.engine.optimizer import Optimizer
from pflcli.core.engine.tasks import Task
from pflcli.core.engine.tasks.classes import Classification
from pflcli.core.engine.tasks.count import Count
from pflcli.core.engine.tasks.quantile import Quantile
from pflcli.core.engine.tasks.quantity import Quantity
from pflcli.core.parameters import Params, Stacked
from pflcli.plugins.accelerated import loops
from pflcli.plugins.accelerated.compiler import Array, Arrays, compiled
from pflcli.plugins.accelerated.loops import add, mean_loss, pull, shift_and_rectify, shift_and_rectify_backward
from pflcli.plugins.accelerated.products import product, product_by_rows


@compiled
def client_row(values: Array, place: int) -> Array:
    """Return a client's row of ``values`` (m, ...), or the only row (1, ...)."""
    own: Array = values[place if len(values) > 1 else 0]
    return own


@compiled
def count_samples(weight: Array, place: int, n: int) -> int:
    """Return the number of samples of a minibatch of ``n``, without those of weight zero at the end."""
    while n and len(weight) and weight[place, n - 1] == 0:
        n -= 1
    return n


@compiled
def forward_one(layers: Array, parameters: Arrays, client: int, x: Array, at: int, n: int, values: Array) -> None:
    """Write each layer's outputs for ``n`` samples of ``x``, from sample ``at`` on, into ``values`` (L, ...)."""
    for index in range(len(layers)):
        inputs, outputs = layers[index, 0], layers[index, 1]
        w, b = client_row(parameters[2 * index], client), client_row(parameters[2 * index + 1], client)
        h, out = values[index - 1] if index else x, values[index]
        product_by_rows((n, outputs, inputs), h, at * inputs, inputs, w, 0, inputs, out, at * outputs, outputs, 0)
        rows = out[at * outputs : (at + n) * outputs].reshape(n, outputs)
        shift_and_rectify(rows, b if len(b) else np.zeros(outputs, x.dtype), layers[index, 2] == 1)


@compiled
def lowest_trained_layer(trained: Array) -> int:
    """Return the index of the lowest layer that has ``trained`` parameters, see ``take_steps``."""
    index = 0
    while 2 * index < len(trained) and not (trained[2 * index] or trained[2 * index + 1]):
        index += 1
    return index


@compiled
def backward_one(
    layers: Array,
    parameters: Arrays,
    client: int,
    samples: tuple[Array, int, int],
    values: Array,
    grads: Array,
    above: tuple[int, Array],
    last: int,
    trained: Array,
    move: tuple[Arrays, float, Arrays, float],
    targets: Arrays,
    adds: bool,
) -> None:
    """Write the gradients by the parameters into ``targets``; if it ``adds``, ``pull`` the targets and add them.

    ``samples`` are x, the index of the first sample, and the number n of samples. The last row of ``grads`` (L, ...)
    contains the gradients by the logits. The other rows, down to the layer ``last``, receive those by the outputs of
    layers before ReLU. ``above`` is a layer and additional gradients by its inputs, which may be empty.
    ``move`` is the anchor, the part of the way to it, the drift and its rate, see ``take_steps``.
    """
    x, at, n = samples
    body, z = above
    anchor, part, drift, rate = move
    more = 1 if adds else 0
    for index in range(len(layers) - 1, last - 1, -1):
        inputs, outputs = layers[index, 0], layers[index, 1]
        h, grad, by_bias = values[index - 1] if index else x, grads[index], np.empty(outputs, x.dtype)
        out, by_out = values[index, at * outputs : (at + n) * outputs], grad[: n * outputs].reshape(n, outputs)
        shift_and_rectify_backward(out.reshape(n, outputs), layers[index, 2] == 1, by_out, by_bias)
        if index > last:  # before the weights change
            w, below = client_row(parameters[2 * index], client), grads[index - 1]
            product((n, inputs, outputs), grad, 0, outputs, 1, w, 0, inputs, below, 0, inputs, 0)
            if index == body and len(z):
                add(below, z[at * inputs : (at + n) * inputs])
        for position in range(2 * index, 2 * index + 2):
            if not trained[position]:
                continue
            target = client_row(targets[position], client)
            if adds:
                pull(target, client_row(anchor[position], client), part, client_row(drift[position], client), rate)
            if position % 2 == 0:
                product((outputs, inputs, n), grad, 0, 1, outputs, h, at * inputs, inputs, target, 0, inputs, more)
            else:
                if not adds:
                    target[:] = 0
                add(target, by_bias)


@compiled
def forward_stack(layers: Array, parameters: Arrays, n: int, x: Array, weight: Array, values: Array) -> None:
    """Write each layer's outputs for a stack of chains into ``values`` (L, ...); ``x`` (a, n, d) is flattened.

    The outputs of samples with ``weight`` (a, n) zero at the end of a minibatch are zero. Without weights, ``weight``
    is (0, 0). See ``take_steps`` for ``layers`` and ``parameters``.
    """
    for client in range(len(x) // (n * layers[0, 0])):
        count = count_samples(weight, client, n)
        forward_one(layers, parameters, client, x, client * n, count, values)
        for index in range(len(layers)):
            outputs = layers[index, 1]
            values[index, (client * n + count) * outputs : (client + 1) * n * outputs] = 0


@compiled
def backward_stack(
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
    move: tuple[Arrays, Array, Arrays, Array],
    targets: Arrays,
    adds: bool,
) -> None:
    """Write the gradients by the ``trained`` parameters of a stack into ``targets`` (a, ...), or ``move`` and add them.

    ``x``, ``weight`` and ``values`` are those of ``forward_stack``. ``logits`` (a, n, C) are gradients by the logits,
    ``z`` those by the inputs of the layer ``body``, or empty; both are flattened. ``move`` is the anchor, the part of
    the way to it (a,), the drift, and the rate (a,), see ``take_steps``.
    """
    classes, last, (anchor, part, drift, rate) = layers[-1, 1], lowest_trained_layer(trained), move
    grads = np.empty((len(layers), values.shape[1] // len(part)), x.dtype)
    for client in range(len(part)):
        at, count = client * n, count_samples(weight, client, n)
        own = logits[at * classes : (at + count) * classes]
        for i in range(len(own)):
            grads[-1, i] = own[i]
        samples, step = (x, at, count), (anchor, part[client], drift, rate[client])
        backward_one(layers, parameters, client, samples, values, grads, (body, z), last, trained, step, targets, adds)


@compiled
def take_steps(
    layers: Array,
    parameters: Arrays,
    targets: Arrays,
    trained: Array,
    anchor: Arrays,
    drift: Arrays,
    part: Array,
    batches: tuple[Array, Array, Array, Array, Array],
    loss: tuple[int, Array],
    losses: Array,
) -> None:
    """Take t steps of plain SGD along the gradient of the ``loss`` of ``find_loss``, and write the losses (t,).

    ``batches`` are place (t,), x (t, n, d), y (t, n), weight (t, n) and rate (t,). Step s is one of the client at
    ``place[s]``. The weight of samples is zero for padding at the end.

    A row of ``layers`` contains a layer's number of inputs, its number of outputs, and whether a ReLU follows.
    ``parameters`` (m, ...) are the first layer's weights and biases, then those of the next layer, and so on; a missing
    bias is (1, 0). The gradient at ``parameters`` changes the ``targets`` (m, ...) that ``trained`` marks; they may be
    the same arrays. Before that, a step moves the targets by ``part[s]`` of the way to the ``anchor`` (1 or m, ...),
    and by ``rate[s]`` against the ``drift`` (m, ...); without an anchor or a drift, these are (1, 0).
    """
    (place, x, y, weight, rate), width, classes, no_z = batches, 0, layers[-1, 1], np.empty(0, batches[1].dtype)
    for layer in layers:
        width = max(width, x.shape[1] * layer[1])
    values, grads = np.empty((len(layers), width), x.dtype), np.empty((len(layers), width), x.dtype)
    last = lowest_trained_layer(trained)
    for s in range(len(place)):
        client, samples, n = place[s], x[s].reshape(-1), count_samples(weight, s, x.shape[1])
        forward_one(layers, parameters, client, samples, 0, n, values)
        logits, by_logits = values[-1, : n * classes].reshape(n, classes), grads[-1, : n * classes].reshape(n, classes)
        losses[s] = mean_loss(loss[0], loss[1], logits, y[s], weight[s], -rate[s], by_logits)
        step = anchor, part[s], drift, rate[s]
        backward_one(
            layers, parameters, client, (samples, 0, n), values, grads, (-1, no_z), last, trained, step, targets, True
        )


_NO_LEVELS = np.empty(0, np.float32)


def find_loss(task: Task) -> tuple[int, NDArray[np.float32]] | None:
    """Return the loss of a task for ``take_steps``, with the quantiles that outputs predict; None if it has none."""
    if type(task) is Classification:
        return loops.CROSS_ENTROPY, _NO_LEVELS
    if type(task) is Quantity:
        return {"squared": loops.SQUARED, "absolute": loops.ABSOLUTE, "huber": loops.HUBER}[task.loss], _NO_LEVELS
    if type(task) is Quantile:
        return loops.QUANTILE, np.asarray(task.quantiles, np.float32)
    return (loops.POISSON, _NO_LEVELS) if type(task) is Count else None


def scale_labels(task: Task, y: NDArray[Any]) -> NDArray[Any]:
    """Return labels of any shape as ``take_steps`` takes them: those of classes as they are, others standardized."""
    if isinstance(task, Quantity):
        y = (y - task.mean) / task.deviation
    return (y / task.mean if isinstance(task, Count) else y).astype(
        np.int64 if type(task) is Classification else np.float32
    )


def layer_table(chain: Sequence[Layer], like: Params) -> NDArray[np.int64]:
    """Return one row per layer: the numbers of inputs and outputs, and whether a ReLU follows."""
    return np.asarray([[*reversed(like[layer.weight].shape), layer.relu] for layer in chain], np.int64)


def layer_arrays(chain: Sequence[Layer], values: Mapping[str, Tensor], is_stacked: bool = True) -> Arrays:
    """Return each layer's weights and biases as arrays (m, numbers), or (1, 0) for a missing bias.

    Values that are not stacked, or the same for all clients, become (1, numbers). The arrays share the memory of
    contiguous values.
    """
    return tuple(_rows(values.get(name), is_stacked) if name else _NONE for layer in chain for name in layer.names)


def _rows(value: Tensor | None, is_stacked: bool) -> NDArray[Any]:
    if value is None:
        return _NONE
    count = value.shape[0] if is_stacked and value.stride(0) else 1
    return (value[:1] if is_stacked and count == 1 else value).reshape(count, -1).numpy()


_NONE, _UNWEIGHTED = np.empty((1, 0), np.float32), np.empty((0, 0), np.float32)


def trained_mask(chain: Sequence[Layer], names: Collection[str]) -> NDArray[np.bool_]:
    """Return for each of the ``layer_arrays`` whether it is one of the parameters ``names``."""
    return np.asarray([name in names for layer in chain for name in layer.names])


class CompiledChainNetwork(ChainNetwork):
    """A ``ChainNetwork`` whose passes are compiled loops."""

    def __init__(self, chain: Sequence[Layer], trained: Collection[str]) -> None:
        super().__init__(chain, trained)
        self._layers: NDArray[np.int64] | None = None
        self._own, self._none = trained_mask(chain, self.trained), (_NONE,) * (2 * len(chain))

    def _table(self, params: Stacked) -> NDArray[np.int64]:
        if self._layers is None:  # the same for all models of a network
            self._layers = layer_table(self._chain, {layer.weight: params[layer.weight][0] for layer in self._chain})
        return self._layers

    def forward(self, params: Stacked, x: Tensor, weight: Tensor | None = None) -> Outputs:
        """Return the outputs of the models ``params`` (a, ...) for ``x`` (a, n, ...); skip padding at the end."""
        (clients, n), x = x.shape[:2], x.flatten(2).contiguous()
        weights = _UNWEIGHTED if weight is None else weight.contiguous().numpy()
        layers = self._table(params)
        values = x.new_empty(len(layers), clients * n * int(layers[:, 1].max()))
        own = layer_arrays(self._chain, params)
        forward_stack(layers, own, n, x.view(-1).numpy(), weights, values.numpy())
        outputs = [
            row[: clients * n * size].view(clients, n, size) for row, size in zip(values, layers[:, 1], strict=True)
        ]
        inputs = [x, *outputs[:-1]]
        return Outputs(outputs[-1], inputs[self._body], (params, inputs, (layers, own, weights, values)))

    def backward(
        self, outputs: Outputs, logits: Tensor | None, z: Tensor | None = None, names: Collection[str] | None = None
    ) -> Stacked:
        """Return the gradients (a, ...) by the parameters ``names``, see ``StackedNetwork``."""
        params, names = outputs.trace[0], self.trained if names is None else names
        grads = {name: torch.empty(len(outputs.logits), *params[name].shape[1:]) for name in names}
        self._backward(outputs, logits, z, names, grads)
        return grads

    def _backward(
        self,
        outputs: Outputs,
        logits: Tensor | None,
        z: Tensor | None,
        names: Collection[str],
        into: Stacked,
        move: _Move | None = None,
    ) -> None:
        """Write the gradients by the parameters ``names`` ``into`` tensors (a, ...) of these names, or move and add."""
        _, inputs, (layers, own, weights, values) = outputs.trace
        trained = self._own if names is self.trained else trained_mask(self._chain, names)
        by_logits = torch.zeros_like(outputs.logits) if logits is None else logits
        passed = layers, own, outputs.logits.shape[1], inputs[0].view(-1).numpy(), weights, values.numpy()
        by_outputs = by_logits.reshape(-1).numpy(), self._body, _NONE[0] if z is None else z.reshape(-1).numpy()
        none = np.zeros(len(outputs.logits), np.float32)
        targets = self._share_memory(into)
        still = self._none, none, self._none, none
        backward_stack(*passed, *by_outputs, trained, move or still, targets, move is not None)

    def step(self, models: Stacked, each: Pass, optimizer: Optimizer) -> Tensor:
        """Return the losses (a,) of a pass; a step of plain SGD is taken by one compiled loop.

        There the backward pass of a client follows its forward pass, so that its weights stay in the cache.
        """
        if not optimizer.is_plain:
            return super().step(models, each, optimizer)
        moved = {name: models[each.moves + name] for name in self.trained}
        batch, rates = each.batch, _rates(optimizer.rate, len(each.batch.x))
        anchor, part, drift, _ = move = self._move(each, optimizer, rates)
        # A step in ``take_steps`` has one rate for gradient and drift.
        if each.loss is not None or (each.scale is not None and any(values.size for values in drift)):
            outputs = self.forward(each.at, batch.x, batch.weight)
            losses, by_logits, by_z, read = differentiate_loss(each, outputs, models, -torch.from_numpy(rates))
            self._backward(outputs, by_logits, by_z, self.trained, moved, move)
            optimizer.add(read)
            return losses
        scaled = rates if each.scale is None else rates * each.scale.numpy()
        return self._take(each.at, moved, batch, (anchor, part, drift, scaled))

    def descend(
        self,
        models: Stacked,
        batch: StackedBatch,
        *,
        rate: float,
        count: int = 1,
        anchor: Stacked | None = None,
        lam: float = 0.0,
    ) -> None:
        """Take all steps of a client before those of the next one, see ``StackedNetwork``."""
        part, rates = (_rates(value, len(batch.x)) for value in (rate * lam, rate))
        moved = {name: models[name] for name in self.trained}
        self._take(models, moved, batch, (layer_arrays(self._chain, anchor or {}), part, self._none, rates), count)

    def _take(self, at: Stacked, moved: Stacked, batch: StackedBatch, move: _Move, count: int = 1) -> Tensor:
        """Move the models ``moved`` along gradients at ``at`` and by ``move``; return the losses (a count,)."""
        anchor, part, drift, rates = move
        numbers = batch.x.flatten(2), batch.y, batch.weight
        x, y, weight, part, rates, places = (
            np.repeat(value, count, axis=0)
            for value in (*(each.contiguous().numpy() for each in numbers), part, rates, np.arange(len(batch.x)))
        )
        models = self._table(at), layer_arrays(self._chain, at), self._share_memory(moved), self._own
        losses = np.empty(len(places))
        samples = places, x, scale_labels(batch.task, y), weight, rates
        take_steps(*models, anchor, drift, part, samples, find_loss(batch.task), losses)
        return torch.from_numpy(losses)

    def _share_memory(self, values: Stacked) -> Arrays:
        """Return arrays for ``values`` that a loop changes, which must be contiguous."""
        assert all(value.is_contiguous() for value in values.values())
        return layer_arrays(self._chain, values)

    def _move(self, each: Pass, optimizer: Optimizer, rates: NDArray[np.float32]) -> _Move:
        """Return the part of a plain step that is not a gradient, see ``take_steps``."""
        anchors, drifts, part = {}, {}, np.zeros_like(rates)
        for name in self.trained:
            anchor, pull, drift = optimizer.terms(each.moves + name)
            if anchor is not None:
                anchors[name], part = anchor, _rates(pull, len(rates))
            if drift is not None:
                drifts[name] = drift
        stacked = any(anchor.ndim == each.at[name].ndim for name, anchor in anchors.items())
        return layer_arrays(self._chain, anchors, stacked), part, layer_arrays(self._chain, drifts), rates


_Move = tuple[Arrays, NDArray[np.float32], Arrays, NDArray[np.float32]]


def _rates(rate: float | Tensor, count: int) -> NDArray[np.float32]:
    """Return one rate for each client (count,)."""
    return rate.numpy() if isinstance(rate, Tensor) else np.full(count, rate, np.float32)
