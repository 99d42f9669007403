"""Passes of chains of linear layers and ReLU without autograd: a step is a few matrix products.

The arithmetic of a small multilayer perceptron or of a logistic model takes less time than autograd needs to record it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflcli.core.engine.gradients import Outputs, Pass, StackedNetwork, differentiate_loss
from pflcli.core.engine.optimizer import Optimizer
from pflcli.core.parameters import Params, Stacked

LARGE = 100_000
"""Least number of weights of a chain for which compiled loops are used: Numba takes half a second to load."""


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
    for name, module in (*_expand("body", net.body), *_expand("head", net.head)):  # type: ignore[arg-type]
        if type(module) is nn.Flatten and not chain and (module.start_dim, module.end_dim) == (1, -1):
            flat = True
        elif type(module) is nn.Linear and flat:
            chain.append(Layer(f"{name}.weight", f"{name}.bias" if module.bias is not None else None, relu=False))
        elif type(module) is nn.ReLU and chain and not chain[-1].relu:
            chain[-1] = Layer(chain[-1].weight, chain[-1].bias, relu=True)
        elif type(module) is not nn.Identity:
            return None
    # Layers that share weights would need the sum of two gradients.
    tensors = [
        id(value) for layer in chain for value in net.get_submodule(layer.weight.rpartition(".")[0]).parameters()
    ]
    return chain if chain and not chain[-1].relu and len(set(tensors)) == len(tensors) else None


def _expand(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of a module in order, with their names; nested ``Sequential`` modules are expanded."""
    if type(module) is nn.Sequential:
        for child, layer in module._modules.items():  # named_children would skip the second occurrence of a layer
            assert layer is not None
            yield from _expand(f"{name}.{child}", layer)
    else:
        yield name, module


def outputs(chain: Sequence[Layer], params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits (n, C) and representations (n, d) of one model for ``x`` (n, ...), with the bits of its network."""
    h = x.flatten(1)
    z = None
    for layer in chain:
        if z is None and layer.weight.startswith("head."):
            z = h
        h = functional.linear(h, params[layer.weight], params[layer.bias] if layer.bias else None)
        h = functional.relu(h) if layer.relu else h
    return h, h if z is None else z


class ChainNetwork(StackedNetwork):
    """Forward and backward passes of a stack of chains, see ``pflcli.core.engine.gradients``."""

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
        """Return the gradients (a, ...) by the parameters ``names``, see ``StackedNetwork``."""
        names, grads = self.trained if names is None else names, {}
        for name, grad, h in self._gradients(outputs, logits, z, names):
            grads[name] = grad.sum(dim=1) if h is None else torch.bmm(grad.mT, h)
        return grads

    def step(self, models: Stacked, each: Pass, optimizer: Optimizer) -> Tensor:
        """Return the losses (a,) of a pass; a step of plain SGD changes the weights in the products."""
        if not optimizer.is_plain:
            return super().step(models, each, optimizer)
        outputs = self.forward(each.at, each.batch.x, each.batch.weight)
        losses, by_logits, by_z, read = differentiate_loss(each, outputs, models, optimizer.rate)
        for name, grad, h in self._gradients(outputs, by_logits, by_z, self.trained):
            own = each.moves + name
            weight = models[own]
            optimizer.pull(own, weight)  # no gradient that is still to come depends on this weight
            if h is None:
                weight.sub_(grad.sum(dim=1))
            else:
                weight.baddbmm_(grad.mT, h, alpha=-1)
        optimizer.add(read)
        return losses

    def _gradients(
        self, outputs: Outputs, logits: Tensor | None, z: Tensor | None, names: Collection[str]
    ) -> Iterator[tuple[str, Tensor, Tensor | None]]:
        """Yield each parameter's name, its layer's gradient by the output, and the input, or None for a bias."""
        params, inputs = outputs.trace
        grad = torch.zeros_like(outputs.logits) if logits is None else logits
        own = [[name for name in layer.names if name and name in names] for layer in self._chain]
        lowest = next((index for index, each in enumerate(own) if each), len(own))
        for index in range(len(self._chain) - 1, lowest - 1, -1):
            # Computed before the weights may change.
            below = torch.bmm(grad, params[self._chain[index].weight]) if index > lowest else None
            for name in own[index]:
                yield name, grad, inputs[index] if name == self._chain[index].weight else None
            if below is None:
                return
            if index == self._body and z is not None:
                below += z
            # Where the output of ReLU is zero, so is its derivative.
            relu = self._chain[index - 1].relu
            grad = torch.ops.aten.threshold_backward(below, inputs[index], 0) if relu else below
