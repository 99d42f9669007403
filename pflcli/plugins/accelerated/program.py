"""Trains MobileNet-like networks and CNNs on a CPU by matrix products and compiled loops, without autograd.

On small images the operators of such networks are small; MobileNet has hundreds. Much of a step's time is spent on
calling them, on allocating their memory, and on waiting for Python's lock when clients train in parallel. Here a step
is one pass over a list of functions, in memory that is allocated once. Pixels are channels-last, so that a pointwise
convolution is a matrix product. The backward pass only needs the input of each layer. Networks that ``graph.read`` does
not support train by autograd.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pflcli.core import parameters
from pflcli.core.engine.gradients import Outputs, Pass, StackedNetwork, differentiate_loss
from pflcli.core.engine.networks import AutogradNetwork, own_names
from pflcli.core.engine.optimizer import Optimizer
from pflcli.core.engine.strategy import Forward
from pflcli.core.parameters import Stacked
from pflcli.plugins.accelerated.graph import Layer
from pflcli.plugins.accelerated.instructions import HAS_FMA
from pflcli.plugins.accelerated.layers import MobileLayers, Move, PooledLayers
from pflcli.plugins.accelerated.products import Step


def compile_network(net: nn.Module, layers: list[Layer]) -> Program | None:
    """Return the program of a network of these layers, or None if this CPU lacks the instructions that make it fast."""
    pools = any(layer.kind in ("first_pooled", "pooled_conv") for layer in layers)
    return None if pools and not HAS_FMA else Program(net, layers)


class Program:
    """Computes the loss of one network in training, and its gradients, with the network's own parameters."""

    def __init__(self, net: nn.Module, layers: list[Layer]) -> None:
        names = {module: name for name, module in net.named_modules()}
        self.grads = {name: torch.empty_like(value) for name, value in net.named_parameters()}
        """gradients of the last batch, by parameter"""
        self.dtype = next(net.parameters()).dtype
        self.linear = frozenset(f"{names[layer.module]}.weight" for layer in layers if layer.kind == "linear")
        """names of the weights of linear layers"""
        self.infers = all(layer.kind != "norm" for layer in layers)
        """whether the forward pass is the same in training and in evaluation"""
        self._net, self._layers, self._names = net, layers, names
        self._moves: Mapping[str, Move] = {}
        self._state, self._external = parameters.state(net), dict[str, Tensor]()
        self._depths: dict[tuple[str, ...], int] = {}
        self._blocks: list[Tensor] = []
        self._passes: dict[int, _Pass] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to pickle the program: a copy must read the weights of the copied network."""
        return Program, (self._net, self._layers)

    def load(self, params: Mapping[str, Tensor]) -> None:
        """Load a model. Contiguous weights of linear layers are used in place until ``forget``, the rest is copied."""
        in_place = {name for name in self.linear if params[name].is_contiguous() and params[name].dtype == self.dtype}
        with torch.no_grad():
            for name, value in self._state.items():
                if name not in in_place:
                    value.copy_(params[name])
        self._external = {name: params[name].detach() for name in in_place}

    def forget(self) -> None:
        """Read all weights from the network again."""
        self._external = {}

    @contextmanager
    def model(self, params: Mapping[str, Tensor]) -> Iterator[Forward]:
        """Yield ``forward`` with a model's parameters, see ``load``."""
        self.load(params)
        try:
            yield self.forward
        finally:
            self.forget()

    @torch.no_grad()
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits (n, C) and representations (n, d) of ``x`` (n, C, H, W); the next batch overwrites them."""
        if not len(x):  # has no pass, but its outputs have a shape
            logits, z = self.forward(x.new_zeros(1, *x.shape[1:]))
            return logits[:0], z[:0]
        if len(x) not in self._passes:
            self._passes[len(x)] = _Pass(self, self._layers, len(x))
        return self._passes[len(x)].forward(x)

    @torch.no_grad()
    def backward(
        self,
        n: int,
        logits: Tensor,
        z: Tensor | None = None,
        names: Collection[str] | None = None,
        moves: Mapping[str, Move] | None = None,
    ) -> None:
        """Write the gradients of the last ``n`` samples, given the gradients by their logits (n, C) and ``z`` (n, d).

        With ``names``, gradients by other parameters may be missing. A weight in ``linear`` with a move gets no
        gradient: instead the contiguous tensor of the move, which may be the weight itself, takes the step.
        """
        self._moves = moves or {}
        self._passes[n].backward(logits, z, len(self._layers) if names is None else self._depth(tuple(names)))

    def _depth(self, names: tuple[str, ...]) -> int:
        """Return the number of layers from the last to the lowest one that has one of these parameters."""
        if names not in self._depths:
            modules = {name.rpartition(".")[0] for name in names}
            own = [i for i, layer in enumerate(self._layers) if self._names.get(layer.module) in modules]
            self._depths[names] = len(self._layers) - min(own, default=len(self._layers))
        return self._depths[names]

    def move(self, layer: Layer) -> Move | None:
        """Return the move of a linear layer's weight, or None if its gradient must be written."""
        return self._moves.get(f"{self._names[layer.module]}.weight")

    def external_weight(self, layer: Layer) -> Tensor | None:
        """Return the weight of a linear layer if it is not the network's own, else None."""
        return self._external.get(f"{self._names[layer.module]}.weight")

    def grad(self, layer: Layer, name: str) -> Tensor:
        """Return the gradient of a layer's parameter."""
        return self.grads[f"{self._names[layer.module]}.{name}"]

    def block(self, index: int, numbers: int) -> Tensor:
        """Return the first ``numbers`` numbers of a block of memory. Batches of all sizes share the blocks."""
        if index == len(self._blocks):
            self._blocks.append(torch.empty(numbers, dtype=self.dtype))
        elif len(self._blocks[index]) < numbers:
            self._blocks[index] = torch.empty(numbers, dtype=self.dtype)
            self._passes.clear()  # they use the old block
        return self._blocks[index][:numbers]


class _Pass(MobileLayers, PooledLayers):
    """The forward and backward pass for batches of ``n`` samples: functions, and the memory that they use."""

    def __init__(self, program: Program, layers: list[Layer], n: int) -> None:
        super().__init__(program, n)
        image, head = layers[0].inputs[0], layers[-1]
        self._images = self._rows(image).view(n, image.channels, image.height, image.width)
        # The methods for each kind of layer are named after it, such as _norm and _norm_back.
        self._forward: list[Step] = [getattr(self, f"_{layer.kind}")(layer) for layer in layers]
        self._z, self._logits = (self._data[value] for value in (head.inputs[0], head.output))
        self._to_logits, _ = self._target(head.output)
        self._backward: list[list[Step]] = []
        for layer in reversed(layers):
            self._backward.append(getattr(self, f"_{layer.kind}_back")(layer, self._grad_of.pop(layer.output)))
            if layer is head:
                self._to_z = self._view(head.inputs[0], self._grad_of[head.inputs[0]])
        norms = [layer for layer in layers if layer.kind == "norm"]
        self._running = [layer.module.running_mean for layer in norms] + [layer.module.running_var for layer in norms]
        self._batch_stats = [self._stats[layer][row] for row in (0, 2) for layer in norms]
        self._momentum = float(norms[0].module.momentum) if norms else 0.0
        self._counters = [layer.module.num_batches_tracked for layer in norms]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits (n, C) and representations (n, d) of a batch."""
        self._images.copy_(x)
        for step in self._forward:
            step()
        if self._counters:
            torch._foreach_lerp_(self._running, self._batch_stats, self._momentum)
            torch._foreach_add_(self._counters, 1)
        return self._logits, self._z

    def backward(self, grad: Tensor, z_grad: Tensor | None, layers: int) -> None:
        """Compute the gradients of the last ``layers`` layers of the program.

        ``grad`` (n, C) and ``z_grad`` (n, d) are the gradients by the logits and by the representations.
        """
        if grad is not self._to_logits:
            self._to_logits.copy_(grad)
        for index, steps in enumerate(self._backward[:layers]):
            if index == 1 and z_grad is not None:
                self._to_z.add_(z_grad)
            for step in steps:
                step()


class CompiledNetwork(StackedNetwork):
    """Passes of one model at a time by a compiled program, in training mode."""

    one_at_a_time = True

    def __init__(self, net: nn.Module, trained: Collection[str], program: Program) -> None:
        self.parameters, self.trained = own_names(net, trained)
        self._program, self._state = program, parameters.state(net)
        self._single = None if program.infers else AutogradNetwork(net, trained)
        """passes of a single sample, which trains with the running statistics of BatchNorm"""

    def forward(self, params: Stacked, x: Tensor, weight: Tensor | None = None) -> Outputs:
        """Return the outputs of the only model of ``params`` (1, ...) for ``x`` (1, n, ...), in training mode."""
        if self._single is not None and x.shape[1] == 1:
            return self._single.forward(params, x, weight)
        with torch.no_grad():
            self._program.load({name: params[name][0] for name in self._state})
            logits, z = self._program.forward(x[0])
            for name, value in self._state.items():
                if name not in self.parameters:
                    params[name][0].copy_(value)
        return Outputs(logits.clone()[None], z.clone()[None], len(x[0]))  # the next batch overwrites them

    def backward(
        self, outputs: Outputs, logits: Tensor | None, z: Tensor | None = None, names: Collection[str] | None = None
    ) -> Stacked:
        """Return the gradients (1, ...) of parameters for gradients of the outputs."""
        names = self.trained if names is None else names
        if not isinstance(outputs.trace, int):
            assert self._single is not None
            return self._single.backward(outputs, logits, z, names)
        if not names:
            return {}
        logits = torch.zeros_like(outputs.logits) if logits is None else logits
        self._program.backward(outputs.trace, logits[0], None if z is None else z[0], names)
        return {name: self._program.grads[name].clone()[None] for name in names}

    def step(self, models: Stacked, each: Pass, optimizer: Optimizer) -> Tensor:
        """Return the losses (a,) of a pass; steps of plain SGD on linear layers are taken by their products."""
        is_single = self._single is not None and each.batch.x.shape[1] == 1
        if not optimizer.is_plain or not each.batch.is_unpadded_client or is_single:
            return super().step(models, each, optimizer)
        outputs = self.forward(each.at, each.batch.x, each.batch.weight)
        losses, by_logits, by_z, read = differentiate_loss(each, outputs, models)
        moves = {}
        for name in self.trained:
            if name in self._program.linear:
                anchor, part, drift = optimizer.terms(each.moves + name)
                weight = models[each.moves + name][0]
                moves[name] = Move(
                    weight, float(optimizer.rate), _only(anchor, weight), float(part), _only(drift, weight)
                )
        logits = torch.zeros_like(outputs.logits) if by_logits is None else by_logits
        self._program.backward(outputs.trace, logits[0], None if by_z is None else by_z[0], self.trained, moves)
        rest = [name for name in self.trained if name not in moves]
        if rest:
            moved = [each.moves + name for name in rest]
            optimizer.move(moved, [models[name] for name in moved], [self._program.grads[name][None] for name in rest])
        optimizer.add(read)
        return losses


def _only(value: Tensor | None, weight: Tensor) -> Tensor | None:
    """Return the only client's tensor, contiguous."""
    return None if value is None else (value[0] if value.ndim > weight.ndim else value).contiguous()
