"""Forward and backward passes of stacks of chains of linear layers by compiled loops, each one call."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.accelerated import chain_loops, mixture_loops
from pflcli.accelerated.products import flat
from pflcli.engine.gradients import Outputs, StackedBatch
from pflcli.engine.linear_chain import ChainNetwork, Layer
from pflcli.parameters import Params, Stacked

Arrays = tuple[NDArray[Any], ...]

_ROWS = 24 * 1024
"""Bytes of a client's mixed weights at a time: those of 30 clients stay in the second cache of a core."""


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
        chain_loops.forward(layers, own, n, x.view(-1).numpy(), weights, values.numpy())
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

    def descend(self, outputs: Outputs, logits: Tensor | None, z: Tensor | None, models: Stacked) -> None:
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
        chain_loops.backward(*passed, *by_outputs, trained, self._none, arrays(self._chain, into), adds)

    def mixture_gradient(self, share: Tensor, models: Stacked, batch: StackedBatch) -> tuple[Tensor, Tensor]:
        """Do as the function of this name, without mixed weights of the first layer or gradients in memory."""
        (clients, n), x = batch.x.shape[:2], batch.x.flatten(2).contiguous()
        layers, shares = self._table(models), share.contiguous().numpy()
        own = [models[name].flatten(1) if name else None for layer in self._chain for name in layer.names]
        basis = tuple(_NONE[0] if value is None else flat(value) for value in own)
        strides = np.asarray([0 if value is None else value.stride(0) for value in own])
        inputs, outputs = layers[0, :2].tolist()
        rows = min(outputs, max(1, _ROWS // (4 * inputs)))  # for any number of clients, as sums depend on it
        sizes = [rows * inputs, *(0 if value is None else value.shape[1] for value in own[1:])]
        mixed = tuple(np.empty((clients, size), np.float32) for size in sizes)
        values = np.empty((len(layers), clients * n * int(layers[:, 1].max())), np.float32)
        passed = n, x.view(-1).numpy(), batch.weight.contiguous().numpy(), mixed, values
        mixture_loops.forward(layers, basis, strides, shares, *passed)
        logits = values[-1, : clients * n * int(layers[-1, 1])].reshape(clients, n, -1)
        losses, by_logits, by_share = np.empty(clients, np.float32), np.empty_like(logits), torch.zeros_like(share)
        mixture_loops.cross_entropies(logits, batch.y.contiguous().numpy(), passed[2], by_logits, losses)
        mixture_loops.backward(layers, basis, strides, by_share.numpy(), *passed, by_logits.reshape(-1))
        return torch.from_numpy(losses), by_share

    def proximal_steps(
        self, params: Stacked, anchor: Stacked, batch: StackedBatch, *, lam: float, rate: float, count: int
    ) -> None:
        """Take steps in place, those of a client one after the other, see ``pflcli.engine.gradients``."""
        layers = self._table(params)
        assert all(params[name].is_contiguous() for name in self.trained)  # so that the arrays share their memory
        x, y, weight = (
            np.repeat(value.numpy(), count, axis=0) for value in (batch.x.flatten(2), batch.y, batch.weight)
        )
        places = np.repeat(np.arange(len(batch.x)), count)
        rates = np.full(len(places), rate, np.float32)
        centres = arrays(self._chain, anchor) if lam else self._none
        steps = places, x, y, weight, rates, rates * np.float32(lam), np.empty(len(places))
        own = arrays(self._chain, params)
        chain_loops.steps(layers, own, own, self._own, centres, self._none, *steps)

    def step(self, params: Stacked, models: Stacked, batch: StackedBatch, scale: Tensor | None = None) -> Tensor:
        """Let ``models`` (a, ...) descend by the loss (a,) of ``params`` (a, ...), and return that.

        The passes of a client follow each other, so that its weights stay in the cache.
        """
        assert batch.rate is not None
        assert all(models[name].is_contiguous() for name in self.trained)  # so that the arrays share their memory
        count, losses = len(batch.x), np.empty(len(batch.x))
        rates = batch.rate if scale is None else batch.rate * scale
        minibatches = (value.contiguous().numpy() for value in (batch.x.flatten(2), batch.y, batch.weight, rates))
        where = arrays(self._chain, params), arrays(self._chain, models), self._own, self._none, self._none
        chain_loops.steps(
            self._table(params), *where, np.arange(count), *minibatches, np.zeros(count, np.float32), losses
        )
        return torch.from_numpy(losses)
