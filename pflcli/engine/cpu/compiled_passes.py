"""Forward and backward passes of stacks of chains of linear layers by compiled loops, each one call."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.engine.cpu import chain_loops
from pflcli.engine.cpu.linear_chain import ChainNetwork, Layer
from pflcli.engine.gradients import Outputs, StackedBatch
from pflcli.parameters import Params, Stacked

Arrays = tuple[NDArray[Any], ...]


def table(chain: Sequence[Layer], like: Params) -> NDArray[np.int64]:
    """Return a row per layer: the numbers of inputs and outputs, and whether a ReLU follows."""
    return np.asarray([[*reversed(like[layer.weight].shape), layer.relu] for layer in chain], np.int64)


def arrays(chain: Sequence[Layer], values: Mapping[str, Tensor], is_stacked: bool = True) -> Arrays:
    """Return each layer's weights and biases as (m, numbers), (1, numbers) if they are not stacked, (1, 0) if absent.

    Where values are contiguous the arrays share their memory.
    """
    rows = []
    for name in (name for layer in chain for name in (layer.weight, layer.bias)):
        value = values.get(name) if name else None
        if value is None:
            rows.append(_NONE)
        elif not is_stacked:
            rows.append(value.reshape(1, -1).numpy())
        else:
            value = value[:1] if value.stride(0) == 0 else value
            rows.append(value.reshape(len(value), -1).numpy())
    return tuple(rows)


_NONE = np.empty((1, 0), np.float32)


def are_trained(chain: Sequence[Layer], names: Collection[str]) -> NDArray[np.bool_]:
    """Return for each of ``arrays`` whether it is one of the parameters ``names``."""
    return np.asarray([name in names for layer in chain for name in (layer.weight, layer.bias)])


class CompiledChainNetwork(ChainNetwork):
    """A ``ChainNetwork`` whose passes are compiled loops."""

    def forward(self, params: Stacked, x: Tensor) -> Outputs:
        """Return the outputs of the models ``params`` (a, ...) for ``x`` (a, n, ...)."""
        (clients, n), x = x.shape[:2], x.flatten(2).contiguous()
        layers = table(self._chain, {layer.weight: params[layer.weight][0] for layer in self._chain})
        values = x.new_empty(len(layers), clients * n * int(layers[:, 1].max()))
        own = arrays(self._chain, params)
        chain_loops.forward(layers, own, n, x.view(-1).numpy(), values.numpy())
        outputs = [
            row[: clients * n * size].view(clients, n, size) for row, size in zip(values, layers[:, 1], strict=True)
        ]
        inputs = [x, *outputs[:-1]]
        return Outputs(outputs[-1], inputs[self._body], (params, inputs, (layers, own, values)))

    def backward(
        self, outputs: Outputs, logits: Tensor | None, z: Tensor | None = None, names: Collection[str] | None = None
    ) -> Stacked:
        """Return the gradients (a, ...) of parameters for gradients of the outputs."""
        params, inputs, (layers, own, values) = outputs.trace
        names, clients, n = self.trained if names is None else names, *outputs.logits.shape[:2]
        grads = {name: torch.empty(clients, *params[name].shape[1:]) for name in names}
        trained = are_trained(self._chain, names)
        by_logits = torch.zeros_like(outputs.logits) if logits is None else logits
        by_z = _NONE[0] if z is None else z.reshape(-1).numpy()
        none = (_NONE,) * len(trained)
        before = layers, own, n, inputs[0].view(-1).numpy(), values.numpy(), by_logits.reshape(-1).numpy()
        chain_loops.backward(*before, self._body, by_z, trained, none, arrays(self._chain, grads))
        return grads

    def proximal_steps(
        self, params: Stacked, anchor: Stacked, batch: StackedBatch, *, lam: float, rate: float, count: int
    ) -> None:
        """Take steps in place, those of a client one after the other, see ``pflcli.engine.gradients``."""
        layers = table(self._chain, {layer.weight: params[layer.weight][0] for layer in self._chain})
        assert all(params[name].is_contiguous() for name in self.trained)  # so that the arrays share their memory
        x, y, weight = (
            np.repeat(value.numpy(), count, axis=0) for value in (batch.x.flatten(2), batch.y, batch.weight)
        )
        places = np.repeat(np.arange(len(batch.x)), count)
        rates = np.full(len(places), rate, np.float32)
        centres, none = arrays(self._chain, anchor if lam else {}), arrays(self._chain, {})
        steps = places, x, y, weight, rates, rates * np.float32(lam), np.empty(len(places))
        own, trained = arrays(self._chain, params), are_trained(self._chain, self.trained)
        chain_loops.steps(layers, own, trained, centres, none, *steps)
