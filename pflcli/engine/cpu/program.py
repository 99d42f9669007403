"""Trains MobileNet-like networks on a CPU by matrix products and compiled loops, without autograd.

On small images such a network consists of hundreds of small operators. Most of a step's time goes into starting them,
into allocating their memory, and into waiting for Python's lock when clients train in parallel. Here a step is one pass
over a list of functions, in memory that is allocated once. Pixels are channels-last, so that a pointwise convolution is
a matrix product. The backward pass needs the input of each layer and nothing else. Networks that ``graph.read`` does
not support train by autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pflcli.engine.cpu import graph
from pflcli.engine.cpu.graph import Layer, Value, kernels

_SIDE = 64
"""Largest height and width of images; on larger ones the stock depthwise convolution is fast enough."""


def of(net: nn.Module, in_shape: tuple[int, ...]) -> Program | None:
    """Return the program of a network for samples of ``in_shape`` (C, H, W), or None if it has none."""
    if len(in_shape) != 3 or max(in_shape[1:]) > _SIDE or next(net.parameters()).device.type != "cpu":
        return None
    layers = graph.read(net, in_shape)
    return Program(net, layers) if layers else None


class Program:
    """The loss of one network in training, and its gradients; it reads the network's parameters where they are."""

    def __init__(self, net: nn.Module, layers: list[Layer]) -> None:
        names = {module: name for name, module in net.named_modules()}
        self.grads = {name: torch.empty_like(value) for name, value in net.named_parameters()}
        """gradients of the last batch by name of the parameter"""
        self.layers = layers
        self.dtype = next(net.parameters()).dtype
        self._names = names
        self._blocks: list[Tensor] = []
        self._passes: dict[int, _Pass] = {}

    @torch.no_grad()
    def step(self, x: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the mean cross-entropy of ``x`` (n, C, H, W), ``y`` (n,) with n > 1; write the gradients.

        ``weight`` (n,) replaces the plain mean. The running statistics of the network change as in its training mode.
        """
        logits, _ = self.forward(x)
        logp, true = torch.log_softmax(logits, dim=1), y[:, None]
        own = -logp.gather(1, true)[:, 0]
        grad = logp.exp_().scatter_add_(1, true, torch.full_like(true, -1, dtype=logp.dtype))
        self.backward(len(x), grad.div_(len(x)) if weight is None else grad.mul_(weight[:, None]))
        return own.mean() if weight is None else own @ weight

    @torch.no_grad()
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits (n, C) and representations (n, d) of ``x`` (n, C, H, W), n > 1; the latter are no copy."""
        if len(x) not in self._passes:
            self._passes[len(x)] = _Pass(self, len(x))
        return self._passes[len(x)].forward(x)

    @torch.no_grad()
    def backward(self, n: int, logits: Tensor, z: Tensor | None = None) -> None:
        """Write the gradients of the last ``n`` samples, for gradients by their logits (n, C) and ``z`` (n, d)."""
        self._passes[n].backward(logits, z)

    def grad(self, layer: Layer, name: str) -> Tensor:
        """Return the gradient of a layer's parameter."""
        return self.grads[f"{self._names[layer.module]}.{name}"]

    def block(self, index: int, numbers: int) -> Tensor:
        """Return the first ``numbers`` numbers of a block of memory; batches of all sizes share the blocks."""
        if index == len(self._blocks):
            self._blocks.append(torch.empty(numbers, dtype=self.dtype))
        elif len(self._blocks[index]) < numbers:
            self._blocks[index] = torch.empty(numbers, dtype=self.dtype)
            self._passes.clear()  # they use the block that was too small
        return self._blocks[index][:numbers]


@dataclass(eq=False)
class _Buffer:
    """Memory for gradients: the index of its block, its size, and how many values have their gradient in it now."""

    block: int
    numbers: int
    users: int = 0


class _Pass:
    """The forward and backward pass for batches of ``n`` samples: functions, and the memory that they use."""

    def __init__(self, program: Program, n: int) -> None:
        self._program, self._n, self._blocks = program, n, 0
        self._data: dict[Value, Tensor] = {}
        self._stats: dict[Layer, Tensor] = {}
        self._patches = torch.empty(0)
        self._grad_of: dict[Value, _Buffer] = {}
        self._free: list[_Buffer] = []
        *body, self._head = program.layers
        image = program.layers[0].inputs[0]
        self._images = self._rows(image).view(n, image.channels, image.height, image.width)
        # The functions of each kind of layer are named after it: _norm and _norm_back.
        self._forward: list[Callable[[], object]] = [getattr(self, f"_{layer.kind}")(layer) for layer in body]
        self._to_z, _ = self._target(self._head.inputs[0])
        self._backward: list[Callable[[], object]] = []
        for layer in reversed(body):
            self._backward += getattr(self, f"_{layer.kind}_back")(layer, self._grad_of.pop(layer.output))
        norms = [layer for layer in body if layer.kind == "norm"]
        self._running = [layer.module.running_mean for layer in norms] + [layer.module.running_var for layer in norms]
        self._batch_stats = [self._stats[layer][row] for row in (0, 2) for layer in norms]
        self._momentum = float(norms[0].module.momentum)
        self._counters = [layer.module.num_batches_tracked for layer in norms]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits (n, C) and representations (n, d) of a batch."""
        self._images.copy_(x)
        for step in self._forward:
            step()
        torch._foreach_lerp_(self._running, self._batch_stats, self._momentum)
        torch._foreach_add_(self._counters, 1)
        z, (weight, bias) = self._data[self._head.inputs[0]], self._parameters(self._head)
        return torch.addmm(bias, z, weight.t()), z

    def backward(self, grad: Tensor, z_grad: Tensor | None) -> None:
        """Leave the gradients in the program, for gradients by the logits (n, C) and representations (n, d)."""
        z, (weight, _) = self._data[self._head.inputs[0]], self._parameters(self._head)
        to_weight, to_bias = self._grads(self._head)
        torch.mm(grad.t(), z, out=to_weight)
        torch.sum(grad, dim=0, out=to_bias)
        torch.mm(grad, weight, out=self._to_z)
        if z_grad is not None:
            self._to_z.add_(z_grad)
        for step in self._backward:
            step()

    # The forward and backward functions of each kind of layer. Backward takes the buffer with the gradient of the
    # layer's output, and reuses it for another value or releases it.

    def _first(self, layer: Layer) -> Callable[[], object]:
        conv, out = layer.module, layer.output
        (weight,) = self._parameters(layer)
        flat = weight.flatten(1)
        self._patches = self._new_block(self._n * out.height * out.width * flat.shape[1]).view(-1, flat.shape[1])
        patches_out = self._patches.view(self._n, out.height, out.width, -1).numpy()
        arguments = (self._images.numpy(), conv.kernel_size[0], conv.stride[0], conv.padding[0], patches_out)
        rows, patches = self._rows(out), self._patches

        def step() -> None:
            kernels().patches(*arguments)
            torch.mm(patches, flat.t(), out=rows)

        return step

    def _first_back(self, layer: Layer, buffer: _Buffer) -> list[Callable[[], object]]:
        grad = self._view(layer.output, buffer)
        return [partial(torch.mm, grad.t(), self._patches, out=self._grads(layer)[0].flatten(1))]

    def _pointwise(self, layer: Layer) -> Callable[[], object]:
        (weight,) = self._parameters(layer)
        return partial(torch.mm, self._data[layer.inputs[0]], weight.flatten(1).t(), out=self._rows(layer.output))

    def _pointwise_back(self, layer: Layer, buffer: _Buffer) -> list[Callable[[], object]]:
        grad, weight = self._view(layer.output, buffer), self._parameters(layer)[0].flatten(1)
        to_x, adds = self._target(layer.inputs[0])
        self._release(buffer)
        return [
            partial(torch.mm, grad.t(), self._data[layer.inputs[0]], out=self._grads(layer)[0].flatten(1)),
            partial(to_x.addmm_, grad, weight) if adds else partial(torch.mm, grad, weight, out=to_x),
        ]

    def _depthwise(self, layer: Layer) -> Callable[[], object]:
        x, out = self._pixels(layer.inputs[0], self._data[layer.inputs[0]]), layer.output
        weight = self._parameters(layer)[0].flatten(1).numpy()
        return partial(kernels().depthwise, x, weight, layer.module.stride[0], self._pixels(out, self._rows(out)))

    def _depthwise_back(self, layer: Layer, buffer: _Buffer) -> list[Callable[[], object]]:
        x = layer.inputs[0]
        inputs = self._pixels(x, self._data[x]), self._parameters(layer)[0].flatten(1).numpy()
        grad, to_weight = self._pixels(layer.output, self._view(layer.output, buffer)), self._grads(layer)[0].flatten(1)
        to_x, additions = self._target_to_add(x)
        self._release(buffer)
        back = kernels().depthwise_backward
        step = partial(back, *inputs, grad, layer.module.stride[0], self._pixels(x, to_x), to_weight.numpy())
        return [step, *additions]

    def _norm(self, layer: Layer) -> Callable[[], object]:
        x = self._data[layer.inputs[0]]
        stats = self._stats[layer] = x.new_empty(3, x.shape[1])
        weight, bias = (value.numpy() for value in self._parameters(layer))
        out = self._rows(layer.output).numpy()
        return partial(kernels().normalize, x.numpy(), weight, bias, layer.module.eps, layer.cap, out, stats.numpy())

    def _norm_back(self, layer: Layer, buffer: _Buffer) -> list[Callable[[], object]]:
        x, steps = self._data[layer.inputs[0]], []
        grad = self._view(layer.output, buffer)
        if buffer.users > 1:  # another value still needs it
            own, _ = self._target(layer.inputs[0])
            steps.append(partial(own.copy_, grad))
            self._release(buffer)
            grad = own
        else:
            self._grad_of[layer.inputs[0]] = buffer
        inputs = x.numpy(), *(value.numpy() for value in self._parameters(layer)), self._stats[layer].numpy()
        outputs = (value.numpy() for value in self._grads(layer))
        return [*steps, partial(kernels().normalize_backward, *inputs, layer.cap, grad.numpy(), *outputs)]

    def _sum(self, layer: Layer) -> Callable[[], object]:
        into, other = (self._data[value] for value in layer.inputs)
        self._data[layer.output] = into
        return partial(into.add_, other)

    def _sum_back(self, layer: Layer, buffer: _Buffer) -> list[Callable[[], object]]:
        into, other = layer.inputs
        self._grad_of[into] = buffer
        if other in self._grad_of:
            return [partial(self._view(other, self._grad_of[other]).add_, self._view(into, buffer))]
        self._grad_of[other] = buffer
        buffer.users += 1
        return []

    def _pool(self, layer: Layer) -> Callable[[], object]:
        x, out = layer.inputs[0], self._rows(layer.output)
        return partial(torch.mean, self._data[x].view(self._n, -1, x.channels), dim=1, out=out)

    def _pool_back(self, layer: Layer, buffer: _Buffer) -> list[Callable[[], object]]:
        x, grad = layer.inputs[0], self._view(layer.output, buffer)
        to_x, additions = self._target_to_add(x)
        self._release(buffer)
        wide = grad[:, None].expand(self._n, x.height * x.width, x.channels)
        return [partial(torch.div, wide, x.height * x.width, out=to_x.view(wide.shape)), *additions]

    # Memory for parameters, values and gradients.

    def _parameters(self, layer: Layer) -> tuple[Tensor, ...]:
        return tuple(value.detach() for value in layer.module.parameters())

    def _grads(self, layer: Layer) -> tuple[Tensor, ...]:
        return tuple(self._program.grad(layer, name) for name, _ in layer.module.named_parameters())

    def _new_block(self, numbers: int) -> Tensor:
        self._blocks += 1
        return self._program.block(self._blocks - 1, numbers)

    def _rows(self, value: Value) -> Tensor:
        """Return new memory for the pixels (n h w, C) of a value."""
        self._data[value] = self._new_block(self._numbers(value)).view(-1, value.channels)
        return self._data[value]

    def _numbers(self, value: Value) -> int:
        return self._n * value.height * value.width * value.channels

    def _target(self, value: Value) -> tuple[Tensor, bool]:
        """Return the memory for the gradient of a value, and whether it already contains a part of the sum."""
        if exists := value in self._grad_of:
            return self._view(value, self._grad_of[value]), exists
        fits = [buffer for buffer in self._free if buffer.numbers >= self._numbers(value)]
        if fits:
            buffer = min(fits, key=lambda buffer: buffer.numbers)
            self._free.remove(buffer)
        else:
            self._new_block(self._numbers(value))
            buffer = _Buffer(self._blocks - 1, self._numbers(value))
        buffer.users += 1
        self._grad_of[value] = buffer
        return self._view(value, buffer), exists

    def _target_to_add(self, value: Value) -> tuple[Tensor, list[Callable[[], object]]]:
        """Return memory for one part of a value's gradient, and the functions that then add it to the other parts."""
        target, exists = self._target(value)
        if not exists:
            return target, []
        buffer = self._grad_of.pop(value)
        part, _ = self._target(value)
        self._release(self._grad_of.pop(value))  # free as soon as it is added, which comes before any other use
        self._grad_of[value] = buffer
        return part, [partial(target.add_, part)]

    def _view(self, value: Value, buffer: _Buffer) -> Tensor:
        """Return the gradient (n h w, C) of a value as a view of its buffer."""
        return self._program.block(buffer.block, self._numbers(value)).view(-1, value.channels)

    def _release(self, buffer: _Buffer) -> None:
        buffer.users -= 1
        if not buffer.users:
            self._free.append(buffer)

    def _pixels(self, value: Value, rows: Tensor) -> NDArray[Any]:
        array: NDArray[Any] = rows.view(self._n, value.height, value.width, value.channels).numpy()
        return array
