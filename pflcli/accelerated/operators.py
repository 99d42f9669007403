"""Replaces layers by forms that are faster on a CPU for their shape, with the same parameters and results.

On small images MobileNet-like networks have maps of 2x2 and 1x1, for which PyTorch's kernels are slow, most of all for
the weight gradient of depthwise convolutions. In other networks max pooling takes as long as a convolution. ``tuned``
chooses the forms by shapes alone, as measured with ``benchmarks/operators.py``, and not by timing at run time, so that
the same seed gives the same bytes. The code of models does not change.
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pflcli.accelerated import graph

_MAX_TAPS_SIDE = 2
"""Largest height and width of maps whose depthwise convolution is computed tap by tap."""


def tuned(net: nn.Module, in_shape: tuple[int, ...]) -> nn.Module:
    """Return a copy of ``net`` whose layers have their fastest form for inputs of ``in_shape`` (C, H, W).

    Names and shapes of parameters do not change, nor do convolutions of networks without depthwise convolutions.
    """
    net = copy.deepcopy(net)
    _join_pools(net, in_shape)
    if not any(graph.is_depthwise(module) for module in net.modules()):
        return net
    for module, size in _map_sizes(net, in_shape):
        if type(module) is not nn.Conv2d:
            continue
        if graph.is_depthwise(module) and size <= _MAX_TAPS_SIDE:
            _set_form(module, SmallDepthwise)
        elif graph.is_pointwise(module) and size == 1:
            _set_form(module, PixelLinear)
        else:
            _set_form(module, ChannelsLast)
    return net


def _set_form(module: nn.Module, form: type[nn.Module]) -> None:
    """Change the class of a module to ``form``, a subclass of its type without attributes of its own.

    The object stays the same, because it may occur in several places and its hooks and parameters must not change.
    """
    module.__class__ = form


def _join_pools(net: nn.Module, in_shape: tuple[int, ...]) -> None:
    """Join each 2x2 max pooling with the ReLU before it, unless other layers use the output of the ReLU."""
    if not any(graph.is_halving(module) for module in net.modules()):
        return
    calls = Counter(module for module, _ in _calls(net, in_shape))
    for layers in list(net.modules()):
        if type(layers) is not nn.Sequential or calls[layers] != 1:
            continue
        before: nn.Module | None = None
        for (name, relu), (_, pool) in itertools.pairwise(layers._modules.items()):
            assert relu is not None
            assert pool is not None
            # An in-place ReLU also changes its input, so no other layer may use that.
            unshared = not getattr(relu, "inplace", False) or isinstance(before, (nn.Conv2d, nn.BatchNorm2d))
            if type(relu) is nn.ReLU and graph.is_halving(pool) and unshared and calls[relu] == calls[pool] == 1:
                setattr(layers, name, nn.Identity())
                _set_form(pool, RectifiedPool)
            before = relu


class RectifiedPool(graph.Rectifying):
    """ReLU and 2x2 max pooling as one layer."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the largest positive value, or zero, of each 2x2 pixels (n, C, h // 2, w // 2)."""
        out: Tensor = super().forward(x.relu()) if x.ndim != 4 or _needs_stock_kernel(x) else _Pool.apply(x)  # type: ignore[no-untyped-call]
        return out


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        images, channels, height, width = x.shape
        out = x.new_empty(images, channels, height // 2, width // 2)
        from pflcli.accelerated import loops  # Numba takes a third of a second to import

        loops.rectified_pool(x.detach().flatten(0, 1).numpy(), out.flatten(0, 1).numpy())
        ctx.save_for_backward(x)  # not the output, which the next layer may change in place
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        from pflcli.accelerated import loops

        (x,) = ctx.saved_tensors
        to_x = torch.empty_like(x)
        inputs = (value.flatten(0, 1).numpy() for value in (x.detach(), grad.contiguous()))
        loops.rectified_pool_backward(*inputs, to_x.flatten(0, 1).numpy())
        return to_x


def _needs_stock_kernel(x: Tensor) -> bool:
    """Whether a layer must use PyTorch's kernel: for other types and devices, and within torch.func."""
    return (
        x.dtype not in (torch.float32, torch.float64)
        or x.device.type != "cpu"
        or torch._C._are_functorch_transforms_active()
    )


class ChannelsLast(graph.Form):
    """PyTorch's kernel on channels-last memory. The layers between such convolutions keep that layout."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution (n, C, h, w)."""
        out: Tensor = super().forward(x.contiguous(memory_format=torch.channels_last))
        return out


class PixelLinear(graph.Form):
    """A 1x1 convolution of a 1x1 map: a linear layer."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution (n, C, 1, 1)."""
        flat = nn.functional.linear(x.flatten(1), self.weight.flatten(1), self.bias)
        return flat[:, :, None, None]


class SmallDepthwise(graph.Form):
    """A depthwise 3x3 convolution of a small map, computed tap by tap."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution (n, C, h, w), channels-last."""
        if _needs_stock_kernel(x):
            return super().forward(x)
        out = _Taps.apply(x.permute(0, 2, 3, 1), self.weight.flatten(1).t(), self.stride[0])  # type: ignore[no-untyped-call]
        return out.permute(0, 3, 1, 2)  # type: ignore[no-any-return]


class _Taps(torch.autograd.Function):
    """Depthwise 3x3 with padding 1 on pixels (n, h, w, C) and weights (9, C): nine shifted multiply-sums."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        ctx.save_for_backward(x, weight)
        ctx.stride = stride
        height, width = ((side - 1) // stride + 1 for side in x.shape[1:3])
        out = x.new_zeros(len(x), height, width, x.shape[3])
        for tap, outputs, inputs in _tap_pixels(x.shape[1:3], (height, width), stride):
            out[outputs].addcmul_(x[inputs], weight[tap])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        grad = grads[0].contiguous()
        to_x, to_weight = torch.zeros_like(x), torch.zeros_like(weight)
        for tap, outputs, inputs in _tap_pixels(x.shape[1:3], grad.shape[1:3], ctx.stride):
            to_x[inputs].addcmul_(grad[outputs], weight[tap])
            to_weight[tap] = (x[inputs] * grad[outputs]).sum(dim=(0, 1, 2))
        return to_x, to_weight, None


Pixels = tuple[slice, slice, slice]


def _tap_pixels(
    size: tuple[int, ...] | torch.Size, out: tuple[int, ...] | torch.Size, stride: int
) -> Iterator[tuple[int, Pixels, Pixels]]:
    """Yield each tap (0..8) of the kernel that reaches any pixel, with its output pixels and its input pixels."""
    for tap in range(9):
        overlaps = [
            _overlap(offset - 1, *side, stride)
            for offset, side in zip(divmod(tap, 3), zip(size, out, strict=True), strict=True)
        ]
        if all(overlaps):
            (rows, from_rows), (columns, from_columns) = (overlap for overlap in overlaps if overlap)
            all_images = slice(None)
            yield tap, (all_images, rows, columns), (all_images, from_rows, from_columns)


def _overlap(shift: int, size: int, out: int, stride: int) -> tuple[slice, slice] | None:
    """Return the outputs o and inputs ``stride o + shift`` that exist along one axis, or None if there are none."""
    inside = [o for o in range(out) if 0 <= stride * o + shift < size]
    if not inside:
        return None
    first, last = inside[0], inside[-1]
    return slice(first, last + 1), slice(stride * first + shift, stride * last + shift + 1, stride)


def _map_sizes(net: nn.Module, in_shape: tuple[int, ...]) -> list[tuple[nn.Module, int]]:
    """Return every plain convolution with the larger side of its input map."""
    sizes: dict[nn.Module, int] = {}
    for module, shape in _calls(net, in_shape):
        if type(module) is nn.Conv2d:
            sizes[module] = max(*shape[2:], sizes.get(module, 0))
    return list(sizes.items())


def _calls(net: nn.Module, in_shape: tuple[int, ...]) -> list[tuple[nn.Module, tuple[int, ...]]]:
    """Return every call of a module with the shape of its input, as recorded for one sample of zeros."""
    calls: list[tuple[nn.Module, tuple[int, ...]]] = []
    hooks = [
        module.register_forward_hook(lambda module, inputs, _: calls.append((module, tuple(inputs[0].shape))))
        for module in net.modules()
        if module is not net
    ]
    training = net.training
    with torch.no_grad():
        net.eval()(torch.zeros(1, *in_shape))
    net.train(training)
    for hook in hooks:
        hook.remove()
    return calls
