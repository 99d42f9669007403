"""Layers of CNNs in a compiled program: convolutions that ReLU and 2x2 max pooling follow, and linear layers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray

from pflcli.accelerated.graph import Layer
from pflcli.accelerated.memory import Buffer, Memory, Step, sequence

_TILES = 40
"""Tiles that share the products of a convolution: more do not fit into the cache."""

_APART = 16
"""Numbers between matrices in a row, so that they do not begin a power of two apart."""


class PooledLayers(Memory):
    """The forward and backward functions of each kind of layer, as in ``MobileLayers``."""

    def _first_pooled(self, layer: Layer) -> Step:
        from pflcli.accelerated import pooled

        weight, bias = self._parameters(layer)
        (channels, size), (rows, columns), outputs = _sizes(layer)
        flat, turned = weight.flatten(1), self._new(channels * size * size, outputs)
        planes = self._new(channels, 2 * rows + size - 1, 2, columns + size // 2)
        work = planes, self._new(len(turned), 4, rows * columns), self._new(4, rows * columns, outputs)
        self._work[layer] = tuple(value.numpy() for value in work)
        turn = partial(turned.copy_, flat.t())
        inputs = self._images.numpy(), turned.numpy(), bias.numpy(), layer.module.padding[0], (rows, columns)
        return sequence([turn, partial(pooled.first, *inputs, self._work[layer], *self._pooled(layer))])

    def _first_pooled_back(self, layer: Layer, buffer: Buffer) -> list[Step]:
        from pflcli.accelerated import pooled

        (channels, size), windows, outputs = _sizes(layer)
        to_weight, to_bias = self._grads(layer)
        turned, (grad, codes) = self._new(channels * size * size, outputs), self._to_pooled(layer, buffer)
        inputs = self._images.numpy(), layer.module.padding[0], windows, self._work[layer], grad, codes
        step = partial(pooled.first_backward, *inputs, turned.numpy(), to_bias.numpy())
        return [step, partial(to_weight.flatten(1).copy_, turned.t())]

    def _pooled_conv(self, layer: Layer) -> Step:
        from pflcli.accelerated import winograd

        weight, bias = (value.numpy() for value in self._parameters(layer))
        side, points = winograd.SIDE, winograd.POINTS
        (channels, _), (rows, columns), outputs = _sizes(layer)
        tiles_across, tiles_down = (columns + 1) // 2, (rows + 1) // 2
        each = tiles_across * tiles_down
        high, wide, group = 4 * tiles_down + 4, 4 * tiles_across + 4, min(self._n, max(1, _TILES // each))
        tiles, per_filter = group * each, channels * outputs + _APART
        lines = max(side * wide * channels, 4 * side * outputs)
        planes = (points, tiles * channels + _APART), (points, tiles * outputs + _APART)
        shapes = (high, wide, channels), (lines,), *planes, (2, 4, 2, outputs)
        work = tuple(self._new(*shape).numpy() for shape in shapes)
        of_taps = tuple(self._new(*shape).numpy() for shape in ((channels, 25, outputs), (5 * side, outputs)))
        filters, turned, to_filters = (self._new(points, per_filter).numpy() for _ in range(3))
        self._work[layer] = group, work, of_taps, to_filters, turned
        prepare = partial(winograd.filters, _taps(weight), *of_taps, filters, turned)
        x, padding = self._pixels(layer.inputs[0], self._data[layer.inputs[0]]), layer.module.padding[0]
        arguments = x, filters, bias, padding, (rows, columns), group, work, *self._pooled(layer)
        return sequence([prepare, partial(winograd.convolve, *arguments)])

    def _pooled_conv_back(self, layer: Layer, buffer: Buffer) -> list[Step]:
        from pflcli.accelerated import winograd

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
        from pflcli.accelerated import pooled

        x = layer.inputs[0]
        pixels = self._data[x].view(self._n, -1, x.channels)
        return partial(pooled.flatten, pixels.numpy(), self._rows(layer.output).numpy())

    def _flat_back(self, layer: Layer, buffer: Buffer) -> list[Step]:
        from pflcli.accelerated import pooled

        x, grad = layer.inputs[0], self._view(layer.output, buffer)
        to_x, additions = self._target_to_add(x)
        self._release(buffer)
        return [partial(pooled.unflatten, grad.numpy(), to_x.view(self._n, -1, x.channels).numpy()), *additions]

    def _linear(self, layer: Layer) -> Step:
        from pflcli.accelerated import pooled, products

        x, (weight, bias) = self._data[layer.inputs[0]], self._parameters(layer)
        out = self._rows(layer.output)
        inside, elsewhere = (
            products.multiply_by_rows(x, weight, out, self._new),
            partial(self._program.elsewhere, layer),
        )

        def multiply() -> None:
            other = elsewhere()
            for step in inside if other is None else products.multiply_by_rows(x, other, out, x.new_empty):
                step()

        return sequence([multiply, partial(pooled.shift_and_rectify, out.numpy(), bias.numpy(), bool(layer.cap))])

    def _linear_back(self, layer: Layer, buffer: Buffer) -> list[Step]:
        from pflcli.accelerated import linear, pooled

        x, out, (weight, _) = layer.inputs[0], self._data[layer.output], self._parameters(layer)
        grad, (to_weight, to_bias) = self._view(layer.output, buffer), self._grads(layer)
        to_x, additions = self._target_to_add(x)
        self._release(buffer)
        move, elsewhere = partial(self._program.move, layer), partial(self._program.elsewhere, layer)
        rectify = pooled.shift_and_rectify_backward
        return [
            partial(rectify, out.numpy(), bool(layer.cap), grad.numpy(), to_bias.numpy()),
            linear.multiply_back(grad, self._data[x], weight, to_x, to_weight, move, elsewhere, self._new),
            *additions,
        ]

    def _pooled(self, layer: Layer) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return new memory for the output (n, windows, O) of a layer, and for the places that it comes from."""
        out = self._rows(layer.output)
        shape = (self._n, -1, layer.output.channels)
        codes = self._new_block(-(-out.numel() // out.element_size())).view(torch.uint8)[: out.numel()]
        self._codes[layer] = codes.view(shape).numpy()
        return out.view(shape).numpy(), self._codes[layer]

    def _to_pooled(self, layer: Layer, buffer: Buffer) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the gradient (n, windows, O) of a layer's output, and the places that this comes from."""
        grad = self._view(layer.output, buffer).view(self._n, -1, layer.output.channels)
        return grad.numpy(), self._codes[layer]


def _sizes(layer: Layer) -> tuple[tuple[int, int], tuple[int, int], int]:
    """Return the channels and the kernel size of a convolution, the windows in rows and columns, and the outputs."""
    conv, out = layer.module, layer.output
    return (conv.in_channels, conv.kernel_size[0]), (out.height, out.width), conv.out_channels


def _taps(weight: NDArray[Any]) -> NDArray[Any]:
    """Return weights (O, C, 5, 5) as (O, C, 25)."""
    return weight.reshape(*weight.shape[:2], -1)
