"""Trains chains of linear layers and ReLU without autograd: a step is a few matrix products.

The arithmetic of a small multilayer perceptron or a logistic model takes less time than autograd needs to record it.
A stack may have any number of clients. Plain SGD changes the weights in the same product that computes the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflcli.engine import backend
from pflcli.engine.gradients import Outputs, StackedNetwork, cross_entropy
from pflcli.engine.local_sgd import LocalSGD
from pflcli.engine.optimizer import Update
from pflcli.parameters import Params, Stacked

LARGE = 100_000
"""Weights from which on compiled loops serve a chain; Numba takes half a second to load."""


@dataclass(frozen=True)
class Layer:
    """A linear layer's parameter names, and whether a ReLU follows it."""

    weight: str
    bias: str | None
    relu: bool

    @property
    def names(self) -> tuple[str, str | None]:
        """Return the names of weight and bias."""
        return self.weight, self.bias


def layers(net: nn.Module) -> list[Layer] | None:
    """Return the layers of ``net``, or None if it is not a chain of linear layers and ReLU over flattened samples."""
    chain: list[Layer] = []
    flat = False
    for name, module in _leaves(net):
        if type(module) is nn.Flatten and not chain and (module.start_dim, module.end_dim) == (1, -1):
            flat = True
        elif type(module) is nn.Linear and flat:
            chain.append(Layer(f"{name}.weight", f"{name}.bias" if module.bias is not None else None, relu=False))
        elif type(module) is nn.ReLU and chain and not chain[-1].relu:
            chain[-1] = Layer(chain[-1].weight, chain[-1].bias, relu=True)
        elif type(module) is not nn.Identity:
            return None
    # A layer that occurs twice, or two with the same weights, would need the sum of two gradients.
    tensors = [
        id(value) for layer in chain for value in net.get_submodule(layer.weight.rpartition(".")[0]).parameters()
    ]
    return chain if chain and not chain[-1].relu and len(set(tensors)) == len(tensors) else None


def _leaves(net: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of nested ``Sequential`` with their names, in order: body, then head."""
    for part in ("body", "head"):
        yield from _flat(part, getattr(net, part))


def _flat(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    if type(module) is nn.Sequential:
        for child, layer in module._modules.items():  # named_children would skip the second occurrence of a layer
            assert layer is not None
            yield from _flat(f"{name}.{child}", layer)
    else:
        yield name, module


def pays_to_compile(weights: Iterable[Tensor]) -> bool:
    """Whether compiled loops are faster than MKL for a chain with these weights, by the CPU and by their number."""
    values = list(weights)
    if sum(value.numel() for value in values) < LARGE or any(value.dtype != torch.float32 for value in values):
        return False
    products = backend.part("products")
    return products is not None and products.OWN and values[0].device.type == "cpu"


def outputs(chain: Sequence[Layer], params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits (n, C) and representations (n, d) of one model for ``x`` (n, ...), to the bit those of its net."""
    h = x.flatten(1)
    z = None
    for layer in chain:
        if z is None and layer.weight.startswith("head."):
            z = h
        h = functional.linear(h, params[layer.weight], params[layer.bias] if layer.bias else None)
        h = functional.relu(h) if layer.relu else h
    return h, h if z is None else z


def compiled_outputs(chain: Sequence[Layer], params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return what ``outputs`` does, up to rounding, by compiled loops."""
    stack = backend.chain_network(chain, ()).forward({name: value[None] for name, value in params.items()}, x[None])
    return stack.logits[0], stack.z[0]


class ChainNetwork(StackedNetwork):
    """Forward and backward passes of a stack of chains, see ``pflcli.engine.gradients``."""

    def __init__(self, chain: Sequence[Layer], trained: Collection[str]) -> None:
        names = [name for layer in chain for name in layer.names if name]
        self.parameters, self.trained = tuple(names), tuple(name for name in names if name in set(trained))
        self._chain = chain
        self._body = next((i for i, layer in enumerate(chain) if layer.weight.startswith("head.")), len(chain))
        """the number of layers below the representation"""

    def forward(self, params: Stacked, x: Tensor, weight: Tensor | None = None) -> Outputs:
        """Return the outputs of the models ``params`` (a, ...) for ``x`` (a, n, ...)."""
        inputs, h = [], x.flatten(2)
        for layer in self._chain:
            inputs.append(h)
            w = params[layer.weight]
            h = torch.baddbmm(params[layer.bias][:, None], h, w.mT) if layer.bias else torch.bmm(h, w.mT)
            if layer.relu:
                h.relu_()
        return Outputs(h, inputs[self._body], (params, inputs))

    def backward(
        self, outputs: Outputs, logits: Tensor | None, z: Tensor | None = None, names: Collection[str] | None = None
    ) -> Stacked:
        """Return the gradients (a, ...) of parameters for gradients of the outputs."""
        names, grads = self.trained if names is None else names, {}
        for name, grad, h in self._gradients(outputs, logits, z, names):
            grads[name] = grad.sum(dim=1) if h is None else torch.bmm(grad.mT, h)
        return grads

    def subtract_gradients(self, outputs: Outputs, logits: Tensor | None, z: Tensor | None, models: Stacked) -> None:
        """Subtract the gradients from the trained parameters of ``models`` (a, ...), in products that compute them."""
        self.pull_and_subtract(outputs, logits, z, models, lambda name: None)

    def pull_and_subtract(
        self, outputs: Outputs, logits: Tensor | None, z: Tensor | None, models: Stacked, pull: Callable[[str], None]
    ) -> None:
        """Do the same, but ``pull`` each parameter, by its name, as soon as no other gradient depends on it."""
        for name, grad, h in self._gradients(outputs, logits, z, self.trained):
            pull(name)
            if h is None:
                models[name].sub_(grad.sum(dim=1))
            else:
                models[name].baddbmm_(grad.mT, h, alpha=-1)

    def _gradients(
        self, outputs: Outputs, logits: Tensor | None, z: Tensor | None, names: Collection[str]
    ) -> Iterator[tuple[str, Tensor, Tensor | None]]:
        """Yield the names of parameters, the gradient by the layer's output, and its input; None for biases."""
        params, inputs = outputs.trace
        grad = torch.zeros_like(outputs.logits) if logits is None else logits
        own = [[name for name in layer.names if name and name in names] for layer in self._chain]
        lowest = next((index for index, each in enumerate(own) if each), len(own))
        for index in range(len(self._chain) - 1, lowest - 1, -1):
            # Taken before the weights may change.
            below = torch.bmm(grad, params[self._chain[index].weight]) if index > lowest else None
            for name in own[index]:
                yield name, grad, inputs[index] if name == self._chain[index].weight else None
            if below is None:
                return
            if index == self._body and z is not None:
                below += z
            # ReLU's output is zero where its derivative is; the chain's inputs below the lowest layer need none.
            relu = self._chain[index - 1].relu
            grad = torch.ops.aten.threshold_backward(below, inputs[index], 0) if relu else below


def network(chain: Sequence[Layer], trained: Collection[str], weights: Iterable[Tensor]) -> ChainNetwork:
    """Return the passes of stacks of a chain with ``weights`` in their fastest form."""
    if not pays_to_compile(weights):
        return ChainNetwork(chain, trained)
    return cast("ChainNetwork", backend.chain_network(chain, trained))


class Trainer:
    """Trains a stack of ``models`` (m, ...) in place; its first rows are always those that still train."""

    def __init__(self, chain: Sequence[Layer], models: Stacked, plan: LocalSGD) -> None:
        self._models = models
        weights = [models[layer.weight][0] for layer in chain]
        names = [name for name in models if name.startswith(plan.trainable)]
        # Where a chain has compiled loops, one of them takes all plain steps: see ``accelerated/steps.py``.
        self._network = ChainNetwork(chain, names) if plan.is_plain else network(chain, names, weights)
        self.names = tuple(self._network.trained)
        self._update = Update(plan, self.names, [models[name] for name in self.names])

    def step(self, x: Tensor, y: Tensor, weight: Tensor, rate: Tensor) -> Tensor:
        """Take one step on ``x`` (a, n, ...), ``y`` (a, n) and return the losses (a,).

        ``weight`` (a, n) of samples adds up to one for each client; ``rate`` (a,) holds learning rates.
        """
        models = {name: value[: len(x)] for name, value in self._models.items()}
        outputs = self._network.forward(models, x, weight)
        # Plain SGD needs no gradient of its own: the product that would compute it changes the weights.
        losses, grad = cross_entropy(outputs.logits, y, weight, rate if self._update.is_plain else None)
        if self._update.is_plain:
            place = self.names.index
            self._network.pull_and_subtract(
                outputs, grad, None, models, lambda name: self._update.pull(place(name), models[name], rate)
            )
        else:
            grads = self._network.backward(outputs, grad)
            self._update([models[name] for name in self.names], [grads[name] for name in self.names], rate)
        return losses
