"""Layers of MobileNet-like networks in a compiled program: convolutions without bias, normalization, sums, pooling."""

from __future__ import annotations

from functools import partial

import torch

from pflcli.accelerated.graph import Layer, kernels
from pflcli.accelerated.memory import Buffer, Memory, Step, sequence


class MobileLayers(Memory):
    """The forward and backward functions of each kind of layer, which are named after it: _norm and _norm_back.

    Backward takes the buffer with the gradient of the layer's output, and reuses it for another value or releases it.
    """

    def _first(self, layer: Layer) -> Step:
        from pflcli.accelerated.products import multiply_by_rows

        conv, out = layer.module, layer.output
        (weight,) = self._parameters(layer)
        flat = weight.flatten(1)
        self._patches = self._new_block(self._n * out.height * out.width * flat.shape[1]).view(-1, flat.shape[1])
        patches_out = self._patches.view(self._n, out.height, out.width, -1).numpy()
        arguments = (self._images.numpy(), conv.kernel_size[0], conv.stride[0], conv.padding[0], patches_out)
        products = multiply_by_rows(self._patches, flat, self._rows(out), self._new)
        return sequence([partial(kernels().patches, *arguments), *products])

    def _first_back(self, layer: Layer, buffer: Buffer) -> list[Step]:
        from pflcli.accelerated.products import multiply

        grad = self._view(layer.output, buffer)
        return [multiply(grad.t(), self._patches, self._grads(layer)[0].flatten(1))]

    def _pointwise(self, layer: Layer) -> Step:
        from pflcli.accelerated.products import multiply_by_rows

        (weight,) = self._parameters(layer)
        rows = self._rows(layer.output)
        return sequence(multiply_by_rows(self._data[layer.inputs[0]], weight.flatten(1), rows, self._new))

    def _pointwise_back(self, layer: Layer, buffer: Buffer) -> list[Step]:
        from pflcli.accelerated.products import multiply

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
        return partial(kernels().depthwise, x, weight, layer.module.stride[0], self._pixels(out, self._rows(out)))

    def _depthwise_back(self, layer: Layer, buffer: Buffer) -> list[Step]:
        x = layer.inputs[0]
        inputs = self._pixels(x, self._data[x]), self._parameters(layer)[0].flatten(1).numpy()
        grad, to_weight = self._pixels(layer.output, self._view(layer.output, buffer)), self._grads(layer)[0].flatten(1)
        to_x, additions = self._target_to_add(x)
        self._release(buffer)
        back = kernels().depthwise_backward
        step = partial(back, *inputs, grad, layer.module.stride[0], self._pixels(x, to_x), to_weight.numpy())
        return [step, *additions]

    def _norm(self, layer: Layer) -> Step:
        x = self._data[layer.inputs[0]]
        stats = self._stats[layer] = x.new_empty(3, x.shape[1])
        weight, bias = (value.numpy() for value in self._parameters(layer))
        out = self._rows(layer.output).numpy()
        return partial(kernels().normalize, x.numpy(), weight, bias, layer.module.eps, layer.cap, out, stats.numpy())

    def _norm_back(self, layer: Layer, buffer: Buffer) -> list[Step]:
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
