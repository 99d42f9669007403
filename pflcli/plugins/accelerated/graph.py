"""Reads a MobileNet-like network or a CNN as a list of layers for ``program.py``.

Such a network takes images and ends with a linear layer. A MobileNet-like network has a first convolution, pointwise
and depthwise convolutions without bias, batch normalization, optionally with ReLU or ReLU6, sums with an earlier value,
and one mean over all pixels. A CNN has convolutions, each followed by ReLU and 2x2 max pooling, whose kernels are 5x5
after the first one, and linear layers, optionally with ReLU.
"""

from __future__ import annotations

import itertools
import operator
from dataclasses import dataclass
from math import inf
from typing import Any

from torch import fx, nn

_MAX_SIDE = 64
"""Largest height and width of images. On larger images PyTorch's depthwise convolution is fast enough."""

_POOLED_KINDS = ("first_pooled", "pooled_conv")
"""Kinds of layers whose output may be flattened."""


@dataclass(eq=False)
class Value:
    """The output (n, height, width, channels) of a layer, and the number of layers that use it."""

    height: int
    width: int
    channels: int
    users: int = 0


@dataclass(eq=False)
class Layer:
    """A layer: its kind, the module with its parameters, its ``inputs`` and its ``output``."""

    kind: str
    module: Any
    inputs: list[Value]
    output: Value
    cap: float = 0.0
    """the output of a norm or of a linear layer is clipped to [0, cap], unless cap is 0"""


def read(net: nn.Module, in_shape: tuple[int, ...]) -> list[Layer] | None:
    """Return the layers of ``net`` for images of ``in_shape`` (C, H, W), or None if it is not such a network."""
    modules = dict(net.named_modules())
    if (
        len(in_shape) != 3
        or max(in_shape[1:]) > _MAX_SIDE
        or not any(_is_depthwise(module) or _is_filter(module) for module in modules.values())
    ):
        return None
    try:
        nodes = list(fx.Tracer().trace(net).nodes)
    except Exception:  # the forward pass cannot be traced
        return None
    channels, height, width = in_shape
    image = Value(height, width, channels)
    reading = _Reading(image)
    values: dict[fx.Node, Value] = {}
    for node in nodes:
        inputs = [values[other] for other in node.all_input_nodes if other in values]
        if node.op == "placeholder":
            values[node] = image
        elif node.op == "call_module" and len(inputs) == 1:
            output = reading.module(modules[str(node.target)], inputs[0])
            if output is None:
                return None
            if output is inputs[0] or not reading.exists(inputs[0]):
                # The value was changed in place or joined. Layers that use it under an earlier name are not supported.
                values = {other: value for other, value in values.items() if value is not inputs[0]}
            values[node] = output
        elif node.op == "call_function" and node.target is operator.add and len(inputs) == 2:
            values[node] = reading.sum(inputs)
        elif node.op != "output" or not reading.layers or inputs != [reading.layers[-1].output]:
            return None
    return reading.layers if reading.is_supported(net) else None


class _Reading:
    """The layers of a network that have been read so far."""

    def __init__(self, image: Value) -> None:
        self.layers: list[Layer] = []
        self._image = image

    def _add(self, kind: str, module: nn.Module | None, inputs: list[Value], output: Value) -> Value:
        for value in inputs:
            value.users += 1
        self.layers.append(Layer(kind, module, inputs, output))
        return output

    def exists(self, value: Value) -> bool:
        """Whether a value is still the image or the output of a layer."""
        return value is self._image or any(layer.output is value for layer in self.layers)

    def module(self, module: nn.Module, x: Value) -> Value | None:
        """Return the output of ``module`` for ``x``, or ``x`` itself if it is clipped; None if it is not supported."""
        producer = next((layer for layer in self.layers if layer.output is x), None)
        if type(module) is nn.Conv2d:
            kind = _convolution(module, x is self._image)
            return self._add(kind, module, [x], _after(module, x)) if kind else None
        if type(module) is nn.BatchNorm2d:
            supported = module.affine and module.track_running_stats and module.momentum is not None
            output = Value(x.height, x.width, x.channels)
            return self._add("norm", module, [x], output) if supported and x is not self._image else None
        unfinished = producer if producer and not producer.cap and not x.users else None
        if unfinished and (
            (type(module) in (nn.ReLU, nn.ReLU6) and unfinished.kind == "norm")
            or (type(module) is nn.ReLU and unfinished.kind in ("linear", "filter"))
        ):
            unfinished.cap = 6.0 if type(module) is nn.ReLU6 else inf
            return x
        if _is_halving(module):
            return self._join_pool(producer, x)
        if type(module) is nn.AdaptiveAvgPool2d and module.output_size in (1, (1, 1)) and producer:
            return self._add("pool", None, [x], Value(1, 1, x.channels))
        if type(module) is nn.Linear and (x.height, x.width) == (1, 1) and module.bias is not None and producer:
            return self._add("linear", module, [x], Value(1, 1, module.out_features))
        flat = type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)
        if flat and (x.height, x.width) != (1, 1) and producer and producer.kind in _POOLED_KINDS:
            return self._add("flat", None, [x], Value(1, 1, x.height * x.width * x.channels))
        flat = flat and (x.height, x.width) == (1, 1)
        return x if flat or type(module) is nn.Identity or (type(module) is nn.Dropout and not module.p) else None

    def _join_pool(self, producer: Layer | None, x: Value) -> Value | None:
        """Join 2x2 max pooling with the convolution and ReLU before it, and return their output; None if impossible."""
        if producer is None or producer.kind != "filter" or not producer.cap or x.users:
            return None
        producer.kind = "first_pooled" if producer.inputs[0] is self._image else "pooled_conv"
        producer.output = Value(x.height // 2, x.width // 2, x.channels)
        return producer.output

    def sum(self, inputs: list[Value]) -> Value:
        """Return the sum of two values."""
        return self._add("sum", None, inputs, Value(inputs[0].height, inputs[0].width, inputs[0].channels))

    def is_supported(self, net: Any) -> bool:
        """Whether a ``Program`` can compute the layers of ``net``."""
        momenta = {layer.module.momentum for layer in self.layers if layer.kind == "norm"}
        kinds = {layer.kind for layer in self.layers}
        in_head = [layer for layer in self.layers if layer.module in set(net.head.modules())]
        one_last = in_head == self.layers[-1:] and self.layers[-1].kind == "linear" and not self.layers[-1].cap
        # A sum shares the gradient of its output with its inputs, but a linear layer overwrites that of its output.
        linear = {layer.output for layer in self.layers if layer.kind == "linear"}
        known = "filter" not in kinds and not any(
            linear & {*layer.inputs} for layer in self.layers if layer.kind == "sum"
        )
        # A sum overwrites its first input, so this must be the output of the layer just before the sum, and no other
        # layer may use it. In the backward pass that layer copies the gradient that both inputs share.
        sums = [(before, layer) for before, layer in itertools.pairwise(self.layers) if layer.kind == "sum"]
        for before, layer in sums:
            layer.inputs.sort(key=lambda value: value is not before.output)  # the overwritten input comes first
        overwritten = all(is_overwritable(before) and layer.inputs[0] is before.output for before, layer in sums)
        # The outputs of norms and sums may have several users, all others must have exactly one: without a user a value
        # has no gradient.
        several = ("norm", "sum")
        used = all(
            layer.output.users == 1 or (layer.output.users and layer.kind in several) for layer in self.layers[:-1]
        )
        one_first = self._image.users == 1 and self.layers[0].kind in ("first", "first_pooled")
        equal_sizes = all(_size(layer.inputs[0]) == _size(layer.inputs[1]) for _, layer in sums)
        # Layers that share weights would need the sum of two gradients.
        weights = [id(value) for layer in self.layers if layer.module for value in layer.module.parameters()]
        unshared = len(set(weights)) == len(weights)
        checks = one_first, one_last, known, used, overwritten, equal_sizes, unshared, len(momenta) <= 1
        return all(checks)


def _size(value: Value) -> tuple[int, int, int]:
    return value.height, value.width, value.channels


def is_overwritable(layer: Layer) -> bool:
    """Whether the only user of a layer's output may overwrite it, because the layer does not need it either."""
    return layer.kind == "norm" and not layer.cap and layer.output.users == 1


def _is_halving(module: nn.Module) -> bool:
    """Whether a module is 2x2 max pooling with stride 2."""
    return (
        type(module) is nn.MaxPool2d
        and module.kernel_size in (2, (2, 2))
        and module.stride in (2, (2, 2))
        and module.padding in (0, (0, 0))
        and module.dilation in (1, (1, 1))
        and not module.return_indices
        and not module.ceil_mode
    )


def _is_depthwise(module: nn.Module) -> bool:
    """Whether a module is a depthwise 3x3 convolution with padding 1 and stride 1 or 2, without bias."""
    return (
        type(module) is nn.Conv2d
        and module.groups == module.in_channels == module.out_channels > 1
        and module.kernel_size == (3, 3)
        and module.padding == (1, 1)
        and module.dilation == (1, 1)
        and module.stride in ((1, 1), (2, 2))
        and module.bias is None
        and module.padding_mode == "zeros"
    )


def _is_pointwise(module: nn.Module) -> bool:
    """Whether a module is a 1x1 convolution of stride 1 over all channels."""
    return (
        type(module) is nn.Conv2d
        and module.kernel_size == module.stride == (1, 1)
        and module.padding == (0, 0)
        and module.groups == 1
    )


def _convolution(module: nn.Conv2d, first: bool) -> str | None:
    if _is_depthwise(module) and not first:
        return "depthwise"
    if _is_pointwise(module) and module.bias is None and not first:
        return "pointwise"
    if _is_filter(module) and (first or module.kernel_size == (5, 5)):
        return "filter"  # until its pooling is read
    return "first" if first and module.bias is None and _is_square(module) else None


def _is_square(module: nn.Conv2d) -> bool:
    """Whether a convolution is a plain one with the same size, stride and padding by zeros in both directions."""
    sizes = (module.kernel_size, module.stride, module.padding)
    square = all(isinstance(size, tuple) and size[0] == size[1] for size in sizes)
    return square and module.groups == 1 and module.dilation == (1, 1) and module.padding_mode == "zeros"


def _is_filter(module: nn.Module) -> bool:
    """Whether a module is a convolution with bias and stride 1, which may be joined with ReLU and pooling."""
    return type(module) is nn.Conv2d and _is_square(module) and module.stride == (1, 1) and module.bias is not None


def _after(module: nn.Conv2d, x: Value) -> Value:
    """Return the output of a convolution for ``x``."""
    assert not isinstance(module.padding, str)
    height, width = (
        (side + 2 * padding - size) // stride + 1
        for side, size, stride, padding in zip(
            (x.height, x.width), module.kernel_size, module.stride, module.padding, strict=True
        )
    )
    return Value(height, width, module.out_channels)
