"""Trains MobileNet-like networks and CNNs on a CPU by matrix products and compiled loops, without autograd.

On small images such networks consist of small operators, MobileNet of hundreds. Much of a step's time goes into
starting them, into allocating their memory, and into waiting for Python's lock when clients train in parallel. Here a
step is one pass over a list of functions, in memory that is allocated once. Pixels are channels-last, so that a
pointwise convolution is a matrix product. The backward pass needs the input of each layer and nothing else. Networks
that ``graph.read`` does not support train by autograd.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pflcli.engine.cpu import graph
from pflcli.engine.cpu.graph import Layer
from pflcli.engine.cpu.memory import Step
from pflcli.engine.cpu.mobile_layers import MobileLayers
from pflcli.engine.cpu.pooled_layers import PooledLayers

_SIDE = 64
"""Largest height and width of images; on larger ones the stock depthwise convolution is fast enough."""


def of(net: nn.Module, in_shape: tuple[int, ...]) -> Program | None:
    """Return the program of a network for samples of ``in_shape`` (C, H, W), or None if it has none."""
    if len(in_shape) != 3 or max(in_shape[1:]) > _SIDE or next(net.parameters()).device.type != "cpu":
        return None
    layers = graph.read(net, in_shape)
    return Program(net, layers) if layers and all(map(_is_compiled, layers)) else None


def _is_compiled(layer: Layer) -> bool:
    """Whether this CPU has the instructions with which a layer's loops are fast."""
    if layer.kind not in ("first_pooled", "pooled_conv"):
        return True
    from pflcli.engine.cpu import vectors

    return vectors.FUSED


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
        """Return the mean cross-entropy of ``x`` (n, C, H, W), ``y`` (n,); write the gradients.

        ``weight`` (n,) replaces the plain mean. The running statistics of the network change as in its training mode,
        which needs n > 1 if there are any.
        """
        logits, _ = self.forward(x)
        logp, true = torch.log_softmax(logits, dim=1), y[:, None]
        own = -logp.gather(1, true)[:, 0]
        grad = logp.exp_().scatter_add_(1, true, torch.full_like(true, -1, dtype=logp.dtype))
        self.backward(len(x), grad.div_(len(x)) if weight is None else grad.mul_(weight[:, None]))
        return own.mean() if weight is None else own @ weight

    @torch.no_grad()
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits (n, C) and representations (n, d) of ``x`` (n, C, H, W); the latter are no copy."""
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


class _Pass(MobileLayers, PooledLayers):
    """The forward and backward pass for batches of ``n`` samples: functions, and the memory that they use."""

    def __init__(self, program: Program, n: int) -> None:
        super().__init__(program, n)
        *body, self._head = program.layers
        image = program.layers[0].inputs[0]
        self._images = self._rows(image).view(n, image.channels, image.height, image.width)
        # The functions of each kind of layer are named after it: _norm and _norm_back.
        self._forward: list[Step] = [getattr(self, f"_{layer.kind}")(layer) for layer in body]
        self._to_z, _ = self._target(self._head.inputs[0])
        self._backward: list[Step] = []
        for layer in reversed(body):
            self._backward += getattr(self, f"_{layer.kind}_back")(layer, self._grad_of.pop(layer.output))
        norms = [layer for layer in body if layer.kind == "norm"]
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
