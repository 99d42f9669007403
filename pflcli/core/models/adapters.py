"""``--adapter lora:RANK``: freeze the body of a network, and train products of low rank beside its layers instead.

Hu et al. (2022), https://arxiv.org/abs/2106.09685, Eq. 3: a layer with the frozen weight W (o, i) computes
(W + B A) x, where A (r, i) and B (o, r) are trained. The factor alpha / r of the paper is 1. A is drawn uniformly, as
PyTorch draws the weights of a linear layer; B starts at zero, so that the network first computes what it computed
before. Each linear layer and each 1x1 convolution of the body gets such a product, as in the authors' code, and the
head is trained as a whole. All other parameters of the body are frozen, and batch normalization uses the stored mean
and variance.

Frozen values are not part of the model that methods see. What clients train, keep and send is ``body.*.down`` (A),
``body.*.up`` (B) and ``head.*``, so that methods that divide models into a body and a head need no change.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from pflcli.core import rng
from pflcli.core.errors import UsageError
from pflcli.core.models.net import Net


class LowRank(nn.Module):
    """A frozen linear layer or 1x1 convolution, and beside it a trained product of two matrices of rank ``rank``."""

    frozen: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Linear | nn.Conv2d, rank: int) -> None:
        super().__init__()
        outputs, inputs, *kernel = layer.weight.shape
        rank = min(rank, outputs, inputs)
        self.down = nn.Parameter(layer.weight.new_empty(rank, inputs, *kernel))
        self.up = nn.Parameter(layer.weight.new_zeros(outputs, rank, *kernel))
        nn.init.kaiming_uniform_(self.down, a=5**0.5)
        _freeze(self, "frozen", layer.weight)
        _freeze(self, "bias", layer.bias)
        self._shape: dict[str, Any] | None = None
        if isinstance(layer, nn.Conv2d):
            self._shape = {"stride": layer.stride, "padding": layer.padding}

    @property
    def weight(self) -> Tensor:
        """Return the sum of the frozen weight and the product, for networks that read the weight of a layer."""
        return self.frozen + (self.up.flatten(1) @ self.down.flatten(1)).view_as(self.frozen)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the layer."""
        if self._shape is None:
            low = functional.linear(x, self.down)
            return functional.linear(x, self.frozen, self.bias) + functional.linear(low, self.up)
        low = functional.conv2d(x, self.down, **self._shape)
        return functional.conv2d(x, self.frozen, self.bias, **self._shape) + functional.conv2d(low, self.up)


class FrozenBatchNorm(nn.Module):
    """Batch normalization with constant mean, variance, scale and shift, in training too."""

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        self.norm = norm.eval()
        self.norm.is_frozen = True  # type: ignore[assignment]
        _freeze_parameters(norm)
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            _freeze(norm, name, norm._buffers.pop(name))

    def train(self, mode: bool = True) -> FrozenBatchNorm:
        """Leave the layer in evaluation mode, in which it uses the stored mean and variance."""
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized batch."""
        out: Tensor = self.norm(x)
        return out


def add(net: Net, adapter: str, seed: int) -> Net:
    """Return a copy of a network with a frozen body and an ``adapter``, such as ``lora:8``, drawn from ``seed``.

    Raises UsageError if the network has no head, or its body has no layer for an adapter.
    """
    rank = int(adapter.partition(":")[2])
    net = copy.deepcopy(net)
    if not any(True for _ in net.head.parameters()):
        raise UsageError(f"--adapter {adapter} trains the head, but the network does not end in a linear layer")
    replaced: dict[int, nn.Module] = {}
    with rng.seeded_torch(rng.integer(seed, "adapter")):
        for place, module in list(net.body.named_modules(remove_duplicate=False)):
            if id(module) not in replaced:
                frozen = _replace_layer(module, rank)
                if frozen is None:
                    continue
                replaced[id(module)] = frozen
            outer, _, name = place.rpartition(".")
            if place:
                setattr(net.body.get_submodule(outer), name, replaced[id(module)])
            else:
                net.body = replaced[id(module)]
    if not any(isinstance(module, LowRank) for module in replaced.values()):
        raise UsageError(
            f"--adapter {adapter} needs a linear layer or a 1x1 convolution before the head, which the model lacks",
            "leave it out, or use another --model",
        )
    for module in net.body.modules():
        if not isinstance(module, LowRank):
            _freeze_parameters(module)
    return net


def _replace_layer(module: nn.Module, rank: int) -> nn.Module | None:
    """Return what replaces a layer, or None if the layer stays."""
    if isinstance(module, _BatchNorm) and module.running_mean is not None:
        return FrozenBatchNorm(module)
    # Subclasses with a forward pass of their own compute something else.
    if isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward:
        return LowRank(module, rank)
    if isinstance(module, nn.Conv2d) and type(module).forward is nn.Conv2d.forward:
        is_pointwise = (module.kernel_size, module.groups, module.padding_mode) == ((1, 1), 1, "zeros")
        return LowRank(module, rank) if is_pointwise else None
    return None


def _freeze_parameters(module: nn.Module) -> None:
    """Make the parameters of a layer, without those of its parts, constants."""
    for name, value in list(module._parameters.items()):
        if value is not None:
            del module._parameters[name]
            _freeze(module, name, value)


def _freeze(module: nn.Module, name: str, value: Tensor | None) -> None:
    """Make a value a constant of the module, which moves between devices but is no part of a model."""
    module.register_buffer(name, None if value is None else value.detach().requires_grad_(False), persistent=False)
