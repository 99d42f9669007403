"""The layers of a compiled program: functions that compute in memory that is allocated once.

``MobileLayers`` are those of networks like MobileNet: convolutions without bias, batch normalization, sums and a mean
over all pixels. ``PooledLayers`` are those of CNNs: convolutions followed by ReLU and 2x2 max pooling, and the linear
layers of both kinds of networks, whose backward pass can also take the step of plain SGD on their weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.plugins.accelerated import loops, products, winograd
from pflcli.plugins.accelerated.compiler import Array, compiled
from pflcli.plugins.accelerated.graph import Layer, Value
from pflcli.plugins.accelerated.instructions import MAX_TILE_ROWS, as_row
from pflcli.plugins.accelerated.loops import pull
from pflcli.plugins.accelerated.products import Step, flat_array, multiply, multiply_by_rows, product, transpose


@dataclass(frozen=True)
class Move:
    """A step of plain SGD on a weight, which the product that computes its gradient takes.

    First the weight moves by the fraction ``part`` of the way to the ``anchor``, and by minus the rate times the
    ``drift``; then by minus the rate times the gradient.
    """

    weight: Tensor
    rate: float
    anchor: Tensor | None = None
    part: float = 0.0
    drift: Tensor | None = None


def chain_steps(steps: list[Step]) -> Step:
    """Return a function that calls these functions in their order."""

    def step() -> None:
        for part in steps:
            part()

    return step


class Blocks(Protocol):
    """What batches of all sizes share: the gradients of parameters, and blocks of memory."""

    def grad(self, layer: Layer, name: str) -> Tensor:
        """Return the gradient of a layer's parameter."""

    def move(self, layer: Layer) -> Move | None:
        """Return the move of a linear layer's weight, or None if its gradient must be written."""

    def external_weight(self, layer: Layer) -> Tensor | None:
        """Return the weight of a linear layer if it is not the network's own, else None."""

    def block(self, index: int, numbers: int) -> Tensor:
        """Return the first ``numbers`` numbers of a block of memory."""


@dataclass(eq=False)
class Buffer:
    """Memory for gradients: the index of its block, its size, and the number of values whose gradient it contains."""

    block: int
    numbers: int
    users: int = 0


class Memory:
    """The memory for batches of ``n`` samples, in which the functions of all layers compute."""

    def __init__(self, blocks: Blocks, n: int) -> None:
        self._program, self._n, self._blocks = blocks, n, 0
        self._data: dict[Value, Tensor] = {}
        self._grad_of: dict[Value, Buffer] = {}
        self._free: list[Buffer] = []
        self._stats: dict[Layer, Tensor] = {}
        self._work: dict[Layer, Any] = {}
        self._codes: dict[Layer, NDArray[Any]] = {}
        self._patches = torch.empty(0)
        self._images = torch.empty(0)

    def _parameters(self, layer: Layer) -> tuple[Tensor, ...]:
        return tuple(value.detach() for value in layer.module.parameters())

    def _grads(self, layer: Layer) -> tuple[Tensor, ...]:
        return tuple(self._program.grad(layer, name) for name, _ in layer.module.named_parameters())

    def _new_block(self, numbers: int) -> Tensor:
        self._blocks += 1
        return self._program.block(self._blocks - 1, numbers)

    def _new(self, *shape: int) -> Tensor:
        """Return new memory of this shape."""
        return self._new_block(torch.Size(shape).numel()).view(shape)

    def _rows(self, value: Value) -> Tensor:
        """Return new memory for the pixels (n h w, C) of a value."""
        self._data[value] = self._new_block(self._numbers(value)).view(-1, value.channels)
        return self._data[value]

    def _numbers(self, value: Value) -> int:
        return self._n * value.height * value.width * value.channels

    def _target(self, value: Value) -> tuple[Tensor, bool]:
        """Return the memory for the gradient of a value, and whether it already contains a part of the gradient."""
        if exists := value in self._grad_of:
            return self._view(value, self._grad_of[value]), exists
        fits = [buffer for buffer in self._free if buffer.numbers >= self._numbers(value)]
        if fits:
            buffer = min(fits, key=lambda buffer: buffer.numbers)
            self._free.remove(buffer)
        else:
            self._new_block(self._numbers(value))
            buffer = Buffer(self._blocks - 1, self._numbers(value))
        buffer.users += 1
        self._grad_of[value] = buffer
        return self._view(value, buffer), exists

    def _target_to_add(self, value: Value) -> tuple[Tensor, list[Step]]:
        """Return memory for one part of a value's gradient, and the functions that then add it to the other parts."""
        target, exists = self._target(value)
        if not exists:
            return target, []
        buffer = self._grad_of.pop(value)
        part, _ = self._target(value)
        self._release(self._grad_of.pop(value))  # it is added before any other use
        self._grad_of[value] = buffer
        return part, [partial(target.add_, part)]

    def _view(self, value: Value, buffer: Buffer) -> Tensor:
        """Return the gradient (n h w, C) of a value as a view of its buffer."""
        return self._program.block(buffer.block, self._numbers(value)).view(-1, value.channels)

    def _release(self, buffer: Buffer) -> None:
        buffer.users -= 1
        if not buffer.users:
            self._free.append(buffer)

    def _pixels(self, value: Value, rows: Tensor) -> NDArray[Any]:
        array: NDArray[Any] = rows.view(self._n, value.height, value.width, value.channels).numpy()
        return array


@compiled
def _linear_backward(
    grad: Array,
    x: Array,
    weight: Array,
    turned: Array,
    to_x: Array,
    to_weight: Array,
    adds: bool,
    rate: float,
    anchor: Array,
    part: float,
    drift: Array,
) -> None:
    """Write the gradients by ``x`` (m, k) and ``weight`` (n, k), given the gradient ``grad`` (m, n) by their product.

    If it ``adds``, ``to_weight``, which may be the weight itself, is pulled and changed by minus the rate times the
    gradient instead. Weights are read and changed a few rows at a time, which stay in the cache. ``turned`` (n m) is
    working memory; ``anchor`` and ``drift`` are (n k) or empty.
    """
    (m, k), n = x.shape, len(weight)
    x_row, weight_row, to_x_row, to_weight_row = as_row(x), as_row(weight), as_row(to_x), as_row(to_weight)
    transpose(as_row(grad), 0, n, turned, 0, m, m, n)
    for first in range(0, n, MAX_TILE_ROWS):
        rows, at, row = min(MAX_TILE_ROWS, n - first), first * m, first * k
        end = row + rows * k
        product((m, k, rows), turned, at, 1, m, weight_row, row, k, to_x_row, 0, k, min(first, 1))
        if adds:
            pull(to_weight_row[row:end], anchor[row:end], part, drift[row:end], rate)
            for i in range(at, at + rows * m):
                turned[i] *= -rate
        product((rows, k, m), turned, at, m, 1, x_row, 0, k, to_weight_row, row, k, 1 if adds else 0)


def multiply_back(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    to_x: Tensor,
    to_weight: Tensor,
    move: Callable[[], Move | None],
    external_weight: Callable[[], Tensor | None],
    new: Callable[..., Tensor],
) -> Step:
    """Return a function that writes the gradients of ``multiply_by_rows``, given the gradient ``grad`` (m, n).

    If ``move`` returns a move, the function takes that step instead of writing the gradient by the weight. If
    ``external_weight`` returns a weight, it replaces ``weight``. ``new`` allocates memory of a shape.
    """
    turned = new(grad.numel() if products.COMPILED else 0)
    none = flat_array(weight.new_empty(0))
    arrays = turned.numpy(), to_x.numpy()

    def read() -> Tensor:
        other = external_weight()
        return weight if other is None else other

    def by_loops() -> None:
        own = move()
        moved = own or Move(to_weight, 0.0)
        anchor, drift = (none if value is None else flat_array(value) for value in (moved.anchor, moved.drift))
        adds = own is not None
        inputs = grad.numpy(), x.numpy(), read().numpy(), *arrays
        _linear_backward(*inputs, moved.weight.numpy(), adds, moved.rate, anchor, moved.part, drift)

    def by_pytorch() -> None:
        torch.mm(grad, read(), out=to_x)
        own = move()
        if own:
            if own.anchor is not None:
                own.weight.lerp_(own.anchor, own.part)
            if own.drift is not None:
                own.weight.sub_(own.drift, alpha=own.rate)
            own.weight.addmm_(grad.t(), x, alpha=-own.rate)
        else:
            torch.mm(grad.t(), x, out=to_weight)

    return by_loops if products.COMPILED else by_pytorch


class MobileLayers(Memory):
    """Methods that return the forward and backward functions of each kind of layer, such as _norm and _norm_back.

    The backward methods take the buffer with the gradient of the layer's output, and reuse it for another value or
    release it.
    """

    def _first(self, layer: Layer) -> Step:
        conv, out = layer.module, layer.output
        (weight,) = self._parameters(layer)
        flat = weight.flatten(1)
        self._patches = self._new_block(self._n * out.height * out.width * flat.shape[1]).view(-1, flat.shape[1])
        patches_out = self._patches.view(self._n, out.height, out.width, -1).numpy()
        arguments = (self._images.numpy(), conv.kernel_size[0], conv.stride[0], conv.padding[0], patches_out)
        products = multiply_by_rows(self._patches, flat, self._rows(out), self._new)
        return chain_steps([partial(loops.patches, *arguments), *products])

    def _first_back(self, layer: Layer, buffer: Buffer) -> list[Step]:
        grad = self._view(layer.output, buffer)
        return [multiply(grad.t(), self._patches, self._grads(layer)[0].flatten(1))]

    def _pointwise(self, layer: Layer) -> Step:
        (weight,) = self._parameters(layer)
        rows = self._rows(layer.output)
        return chain_steps(multiply_by_rows(self._data[layer.inputs[0]], weight.flatten(1), rows, self._new))

    def _pointwise_back(self, layer: Layer, buffer: Buffer) -> list[Step]:
        grad, weight = self._view(layer.output, buffer), self._parameters(layer)[0].flatten(1)
        to_x, adds = self._target(layer.inputs[0])
        self._release(buffer)
        return [
            multiply(grad.t(), self._data[layer.inputs[0]], self._grads(layer)[0].flatten(1)),
            multiply(grad, weight, to_x, adds),
        ]

    def _depthwise(self, layer: Layer) -> Step:
        x, out = self._pixels(layer.inputs[0], self._data[layer.inputs[0]]), layer.output
        weight = self._parameters(layer)[0].flatten(1).numpy()
        return partial(loops.depthwise, x, weight, layer.module.stride[0], self._pixels(out, self._rows(out)))

    def _depthwise_back(self, layer: Layer, buffer: Buffer) -> list[Step]:
        x = layer.inputs[0]
        inputs = self._pixels(x, self._data[x]), self._parameters(layer)[0].flatten(1).numpy()
        grad, to_weight = self._pixels(layer.output, self._view(layer.output, buffer)), self._grads(layer)[0].flatten(1)
        to_x, additions = self._target_to_add(x)
        self._release(buffer)
        back = loops.depthwise_backward
        step = partial(back, *inputs, grad, layer.module.stride[0], self._pixels(x, to_x), to_weight.numpy())
        return [step, *additions]

    def _norm(self, layer: Layer) -> Step:
        x = self._data[layer.inputs[0]]
        stats = self._stats[layer] = x.new_empty(3, x.shape[1])
        weight, bias = (value.numpy() for value in self._parameters(layer))
        out = self._rows(layer.output).numpy()
        return partial(loops.normalize, x.numpy(), weight, bias, layer.module.eps, layer.cap, out, stats.numpy())

    def _norm_back(self, layer: Layer, buffer: Buffer) -> list[Step]:
        x, steps = self._data[layer.inputs[0]], []
        grad = self._view(layer.output, buffer)
        if buffer.users > 1:  # another value also needs it
            own, _ = self._target(layer.inputs[0])
            steps.append(partial(own.copy_, grad))
            self._release(buffer)
            grad = own
        else:
            self._grad_of[layer.inputs[0]] = buffer
        inputs = x.numpy(), *(value.numpy() for value in self._parameters(layer)), self._stats[layer].numpy()
        outputs = (value.numpy() for value in self._grads(layer))
        return [*steps, partial(loops.normalize_backward, *inputs, layer.cap, grad.numpy(), *outputs)]

    def _sum(self, layer: Layer) -> Step:
        into, other = (self._data[value] for value in layer.inputs)
        self._data[layer.output] = into
        return partial(into.add_, other)

    def _sum_back(self, layer: Layer, buffer: Buffer) -> list[Step]:
        into, other = layer.inputs
        self._grad_of[into] = buffer
        if other in self._grad_of:
            return [partial(self._view(other, self._grad_of[other]).add_, self._view(into, buffer))]
        self._grad_of[other] = buffer
        buffer.users += 1
        return []

    def _pool(self, layer: Layer) -> Step:
        x, out = layer.inputs[0], self._rows(layer.output)
        return partial(torch.mean, self._data[x].view(self._n, -1, x.channels), dim=1, out=out)

    def _pool_back(self, layer: Layer, buffer: Buffer) -> list[Step]:
        x, grad = layer.inputs[0], self._view(layer.output, buffer)
        to_x, additions = self._target_to_add(x)
        self._release(buffer)
        wide = grad[:, None].expand(self._n, x.height * x.width, x.channels)
        return [partial(torch.div, wide, x.height * x.width, out=to_x.view(wide.shape)), *additions]


_MAX_TILES = 40
"""Most tiles that share the products of a convolution: more do not fit into the cache."""

_PADDING = 16
"""Numbers between matrices in memory, so that their distance is not a power of two."""


class PooledLayers(Memory):
    """Methods that return the forward and backward functions of each kind of layer, as in ``MobileLayers``."""

    def _first_pooled(self, layer: Layer) -> Step:
        weight, bias = self._parameters(layer)
        (channels, size), (rows, columns), outputs = _sizes(layer)
        flat, turned = weight.flatten(1), self._new(channels * size * size, outputs)
        planes = self._new(channels, 2 * rows + size - 1, 2, columns + size // 2)
        work = planes, self._new(len(turned), 4, rows * columns), self._new(4, rows * columns, outputs)
        self._work[layer] = tuple(value.numpy() for value in work)
        turn = partial(turned.copy_, flat.t())
        inputs = self._images.numpy(), turned.numpy(), bias.numpy(), layer.module.padding[0], (rows, columns)
        return chain_steps([turn, partial(loops.convolve_first, *inputs, self._work[layer], *self._pooled(layer))])

    def _first_pooled_back(self, layer: Layer, buffer: Buffer) -> list[Step]:
        (channels, size), windows, outputs = _sizes(layer)
        to_weight, to_bias = self._grads(layer)
        turned, (grad, codes) = self._new(channels * size * size, outputs), self._to_pooled(layer, buffer)
        inputs = self._images.numpy(), layer.module.padding[0], windows, self._work[layer], grad, codes
        step = partial(loops.convolve_first_backward, *inputs, turned.numpy(), to_bias.numpy())
        return [step, partial(to_weight.flatten(1).copy_, turned.t())]

    def _pooled_conv(self, layer: Layer) -> Step:
        weight, bias = (value.numpy() for value in self._parameters(layer))
        side, points = winograd.SIDE, winograd.POINTS
        (channels, _), (rows, columns), outputs = _sizes(layer)
        tiles_across, tiles_down = (columns + 1) // 2, (rows + 1) // 2
        each = tiles_across * tiles_down
        high, wide, group = 4 * tiles_down + 4, 4 * tiles_across + 4, min(self._n, max(1, _MAX_TILES // each))
        tiles, per_filter = group * each, channels * outputs + _PADDING
        lines = max(side * wide * channels, 4 * side * outputs)
        planes = (points, tiles * channels + _PADDING), (points, tiles * outputs + _PADDING)
        shapes = (high, wide, channels), (lines,), *planes, (2, 4, 2, outputs)
        work = tuple(self._new(*shape).numpy() for shape in shapes)
        of_taps = tuple(self._new(*shape).numpy() for shape in ((channels, 25, outputs), (5 * side, outputs)))
        filters, turned, to_filters = (self._new(points, per_filter).numpy() for _ in range(3))
        self._work[layer] = group, work, of_taps, to_filters, turned
        prepare = partial(winograd.filters, _taps(weight), *of_taps, filters, turned)
        x, padding = self._pixels(layer.inputs[0], self._data[layer.inputs[0]]), layer.module.padding[0]
        arguments = x, filters, bias, padding, (rows, columns), group, work, *self._pooled(layer)
        return chain_steps([prepare, partial(winograd.convolve, *arguments)])

    def _pooled_conv_back(self, layer: Layer, buffer: Buffer) -> list[Step]:
        group, work, of_taps, to_filters, turned = self._work[layer]
        to_weight, to_bias = (value.numpy() for value in self._grads(layer))
        x, (_, windows, _) = layer.inputs[0], _sizes(layer)
        grad, codes = self._to_pooled(layer, buffer)
        to_x, additions = self._target_to_add(x)
        self._release(buffer)
        inputs = self._pixels(x, self._data[x]), turned, layer.module.padding[0], windows, group, work, grad, codes
        back = partial(winograd.convolve_backward, *inputs, self._pixels(x, to_x), to_filters, to_bias)
        return [back, partial(winograd.filters_backward, to_filters, *of_taps, _taps(to_weight)), *additions]

    def _flat(self, layer: Layer) -> Step:
        x = layer.inputs[0]
        pixels = self._data[x].view(self._n, -1, x.channels)
        return partial(loops.flatten, pixels.numpy(), self._rows(layer.output).numpy())

    def _flat_back(self, layer: Layer, buffer: Buffer) -> list[Step]:
        x, grad = layer.inputs[0], self._view(layer.output, buffer)
        to_x, additions = self._target_to_add(x)
        self._release(buffer)
        return [partial(loops.unflatten, grad.numpy(), to_x.view(self._n, -1, x.channels).numpy()), *additions]

    def _linear(self, layer: Layer) -> Step:
        x, (weight, bias) = self._data[layer.inputs[0]], self._parameters(layer)
        out = self._rows(layer.output)
        multiplications = multiply_by_rows(x, weight, out, self._new)

        def multiply() -> None:
            other = self._program.external_weight(layer)
            for step in multiplications if other is None else multiply_by_rows(x, other, out, x.new_empty):
                step()

        return chain_steps([multiply, partial(loops.shift_and_rectify, out.numpy(), bias.numpy(), bool(layer.cap))])

    def _linear_back(self, layer: Layer, buffer: Buffer) -> list[Step]:
        x, out, (weight, _) = layer.inputs[0], self._data[layer.output], self._parameters(layer)
        grad, (to_weight, to_bias) = self._view(layer.output, buffer), self._grads(layer)
        to_x, additions = self._target_to_add(x)
        self._release(buffer)
        move, external_weight = partial(self._program.move, layer), partial(self._program.external_weight, layer)
        rectify = loops.shift_and_rectify_backward
        return [
            partial(rectify, out.numpy(), bool(layer.cap), grad.numpy(), to_bias.numpy()),
            multiply_back(grad, self._data[x], weight, to_x, to_weight, move, external_weight, self._new),
            *additions,
        ]

    def _pooled(self, layer: Layer) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return new memory for the output (n, windows, O) of a layer, and for the ``codes`` of ``rectified_max``."""
        out = self._rows(layer.output)
        shape = (self._n, -1, layer.output.channels)
        codes = self._new_block(-(-out.numel() // out.element_size())).view(torch.uint8)[: out.numel()]
        self._codes[layer] = codes.view(shape).numpy()
        return out.view(shape).numpy(), self._codes[layer]

    def _to_pooled(self, layer: Layer, buffer: Buffer) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the gradient (n, windows, O) of a layer's output, and the ``codes`` of ``rectified_max``."""
        grad = self._view(layer.output, buffer).view(self._n, -1, layer.output.channels)
        return grad.numpy(), self._codes[layer]


def _sizes(layer: Layer) -> tuple[tuple[int, int], tuple[int, int], int]:
    """Return channels and kernel size of a convolution, rows and columns of windows, and output channels."""
    conv, out = layer.module, layer.output
    return (conv.in_channels, conv.kernel_size[0]), (out.height, out.width), conv.out_channels


def _taps(weight: NDArray[Any]) -> NDArray[Any]:
    """Return weights (O, C, 5, 5) as (O, C, 25)."""
    return weight.reshape(*weight.shape[:2], -1)
