"""Chains of linear layers and ReLU, such as a multilayer perceptron, in compiled loops: passes, and steps of plain SGD.

``take_steps`` takes all steps of one client after the other, so that its weights stay in the cache of a core, where
those of a stack would not. ``CompiledChainNetwork`` has the passes for rules of methods. What a client computes
depends on no other client, and samples of weight zero at the end of a batch take no time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.accelerated.compiler import Array, Arrays, compiled
from pflcli.accelerated.loops import add, cross_entropy, pull, shift_and_rectify, shift_and_rectify_backward
from pflcli.accelerated.products import product, product_by_rows
from pflcli.engine.gradients import Outputs, StackedBatch
from pflcli.engine.linear_chain import ChainNetwork, Layer
from pflcli.parameters import Params, Stacked


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
    """Write the gradients of parameters into ``targets``, or move these and add them if wanted.

    ``samples`` are x, the place of the first in x, and their number n. The last row of ``grads`` (L, ...) has the
    gradients by the logits; those by the outputs of layers down to the ``last`` are written there, before ReLU.
    ``above`` are the number of a layer and further gradients by its inputs, which may be empty. A ``move`` is the
    anchor, the part of the way to it, the drift and its rate, see ``take_steps``.
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
def pass_forward(layers: Array, parameters: Arrays, n: int, x: Array, weight: Array, values: Array) -> None:
    """Write the outputs of each layer of a stack of chains into ``values`` (L, ...), for ``x`` (a, n, d) as a row.

    Those of samples of ``weight`` (a, n) zero at the end of a batch are zero; (0, 0) is no weight. See ``take_steps``
    for ``layers`` and ``parameters``.
    """
    for client in range(len(x) // (n * layers[0, 0])):
        count = counted(weight, client, n)
        forward_one(layers, parameters, client, x, client * n, count, 0, values)
        for index in range(len(layers)):
            outputs = layers[index, 1]
            values[index, (client * n + count) * outputs : (client + 1) * n * outputs] = 0


@compiled
def pass_backward(
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

    ``x``, ``weight`` and ``values`` are those of ``pass_forward``. ``logits`` (a, n, C) are gradients by the logits,
    ``z`` those by the inputs of the layer ``body`` or empty, each as a row; ``none`` are empty arrays (1, 0).
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
            (x, at, count),
            values,
            grads,
            (body, z),
            lowest(trained),
            trained,
            (none, zero, none, zero),
            targets,
            adds,
        )


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
    losses: Array,
) -> None:
    """Take t steps of plain SGD along the gradient of the cross-entropy, and write the losses (t,).

    ``batches`` are place (t,), x (t, n, d), y (t, n), weight (t, n) and rate (t,), see ``steps.Minibatches``: the step
    at s is one of the client at ``place[s]``.

    A row of ``layers`` holds the numbers of inputs and outputs of a layer, and whether a ReLU follows. ``parameters``
    (m, ...) are its weights and biases (1, 0 if there are none), then those of the next layer, and so on. The gradient
    there changes those of the ``targets`` (m, ...), which may be the same, that ``trained`` names. A step first moves
    them by ``part[s]`` of the way to the ``anchor`` (1 or m, ...), and by ``rate[s]`` against the ``drift`` (m, ...);
    (1, 0) is no anchor and no drift. Samples are weighted by ``weight`` (t, n).
    """
    place, x, y, weight, rate = batches
    width, classes, no_z = x.shape[1] * widest(layers), layers[-1, 1], np.empty(0, x.dtype)
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
            (samples, 0, n),
            values,
            grads,
            (-1, no_z),
            lowest(trained),
            trained,
            (anchor, part[s], drift, rate[s]),
            targets,
            True,
        )


def table(chain: Sequence[Layer], like: Params) -> NDArray[np.int64]:
    """Return a row per layer: the numbers of inputs and outputs, and whether a ReLU follows."""
    return np.asarray([[*reversed(like[layer.weight].shape), layer.relu] for layer in chain], np.int64)


def arrays(chain: Sequence[Layer], values: Mapping[str, Tensor], is_stacked: bool = True) -> Arrays:
    """Return each layer's weights and biases as (m, numbers), (1, numbers) if they are not stacked, (1, 0) if absent.

    Where values are contiguous the arrays share their memory.
    """
    return tuple(_rows(values.get(name), is_stacked) if name else _NONE for layer in chain for name in layer.names)


def _rows(value: Tensor | None, is_stacked: bool) -> NDArray[Any]:
    if value is None:
        return _NONE
    count = value.shape[0] if is_stacked and value.stride(0) else 1
    return (value[:1] if is_stacked and count == 1 else value).reshape(count, -1).numpy()


_NONE, _UNWEIGHTED = np.empty((1, 0), np.float32), np.empty((0, 0), np.float32)


def are_trained(chain: Sequence[Layer], names: Collection[str]) -> NDArray[np.bool_]:
    """Return for each of ``arrays`` whether it is one of the parameters ``names``."""
    return np.asarray([name in names for layer in chain for name in layer.names])


class CompiledChainNetwork(ChainNetwork):
    """A ``ChainNetwork`` whose passes are compiled loops."""

    def __init__(self, chain: Sequence[Layer], trained: Collection[str]) -> None:
        super().__init__(chain, trained)
        self._layers: NDArray[np.int64] | None = None
        self._own, self._none = are_trained(chain, self.trained), (_NONE,) * (2 * len(chain))

    def _table(self, params: Stacked) -> NDArray[np.int64]:
        if self._layers is None:  # the same for all models of a network
            self._layers = table(self._chain, {layer.weight: params[layer.weight][0] for layer in self._chain})
        return self._layers

    def forward(self, params: Stacked, x: Tensor, weight: Tensor | None = None) -> Outputs:
        """Return the outputs of the models ``params`` (a, ...) for ``x`` (a, n, ...), without padding at the end."""
        (clients, n), x = x.shape[:2], x.flatten(2).contiguous()
        weights = _UNWEIGHTED if weight is None else weight.contiguous().numpy()
        layers = self._table(params)
        values = x.new_empty(len(layers), clients * n * int(layers[:, 1].max()))
        own = arrays(self._chain, params)
        pass_forward(layers, own, n, x.view(-1).numpy(), weights, values.numpy())
        outputs = [
            row[: clients * n * size].view(clients, n, size) for row, size in zip(values, layers[:, 1], strict=True)
        ]
        inputs = [x, *outputs[:-1]]
        return Outputs(outputs[-1], inputs[self._body], (params, inputs, (layers, own, weights, values)))

    def backward(
        self, outputs: Outputs, logits: Tensor | None, z: Tensor | None = None, names: Collection[str] | None = None
    ) -> Stacked:
        """Return the gradients (a, ...) of parameters for gradients of the outputs."""
        params, names = outputs.trace[0], self.trained if names is None else names
        grads = {name: torch.empty(len(outputs.logits), *params[name].shape[1:]) for name in names}
        self._backward(outputs, logits, z, names, grads, adds=False)
        return grads

    def subtract_gradients(self, outputs: Outputs, logits: Tensor | None, z: Tensor | None, models: Stacked) -> None:
        """Subtract the gradients from the trained parameters of ``models`` (a, ...), without writing them."""
        assert all(models[name].is_contiguous() for name in self.trained)  # so that the arrays share their memory
        by_logits, by_z = (None if by_output is None else -by_output for by_output in (logits, z))
        self._backward(outputs, by_logits, by_z, self.trained, models, adds=True)

    def _backward(
        self,
        outputs: Outputs,
        logits: Tensor | None,
        z: Tensor | None,
        names: Collection[str],
        into: Stacked,
        *,
        adds: bool,
    ) -> None:
        """Write gradients of the parameters ``names`` ``into`` tensors of these names (a, ...), or add them."""
        _, inputs, (layers, own, weights, values) = outputs.trace
        trained = self._own if names is self.trained else are_trained(self._chain, names)
        by_logits = torch.zeros_like(outputs.logits) if logits is None else logits
        passed = layers, own, outputs.logits.shape[1], inputs[0].view(-1).numpy(), weights, values.numpy()
        by_outputs = by_logits.reshape(-1).numpy(), self._body, _NONE[0] if z is None else z.reshape(-1).numpy()
        pass_backward(*passed, *by_outputs, trained, self._none, arrays(self._chain, into), adds)

    def proximal_steps(
        self, params: Stacked, anchor: Stacked, batch: StackedBatch, *, lam: float, rate: float, count: int = 1
    ) -> None:
        """Take steps in place, those of a client one after the other, see ``StackedNetwork``."""
        assert all(params[name].is_contiguous() for name in self.trained)  # so that the arrays share their memory
        x, y, weight = (
            np.repeat(value.numpy(), count, axis=0) for value in (batch.x.flatten(2), batch.y, batch.weight)
        )
        places = np.repeat(np.arange(len(batch.x)), count)
        rates = np.full(len(places), rate, np.float32)
        own, centres = arrays(self._chain, params), arrays(self._chain, anchor) if lam else self._none
        losses, batches = np.empty(len(places)), (places, x, y, weight, rates)
        take_steps(
            self._table(params), own, own, self._own, centres, self._none, rates * np.float32(lam), batches, losses
        )

    def gradient(
        self,
        params: Stacked,
        batch: StackedBatch,
        names: Collection[str] | None = None,
        scale: Tensor | None = None,
        models: Stacked | None = None,
    ) -> tuple[Tensor, Stacked]:
        """Do as ``StackedNetwork`` says; where ``models`` take a step of plain SGD, it is one loop.

        The passes of a client follow each other there, so that its weights stay in the cache.
        """
        if models is None or batch.rate is None:
            return super().gradient(params, batch, names, scale, models)
        assert all(models[name].is_contiguous() for name in self.trained)  # so that the arrays share their memory
        count, losses = len(batch.x), np.empty(len(batch.x))
        rates = batch.rate if scale is None else batch.rate * scale
        x, y, weight, rate = (
            value.contiguous().numpy() for value in (batch.x.flatten(2), batch.y, batch.weight, rates)
        )
        take_steps(
            self._table(params),
            arrays(self._chain, params),
            arrays(self._chain, models),
            self._own,
            self._none,
            self._none,
            np.zeros(count, np.float32),
            (np.arange(count), x, y, weight, rate),
            losses,
        )
        return torch.from_numpy(losses), {}
