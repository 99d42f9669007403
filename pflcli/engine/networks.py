"""Stacked networks that work for any network: by autograd, or by torch.func."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from pflcli import parameters
from pflcli.engine.gradients import Outputs, StackedNetwork
from pflcli.parameters import Stacked


def own_names(net: nn.Module, trained: Collection[str]) -> tuple[Collection[str], tuple[str, ...]]:
    """Return the names of the network's parameters, and of the trained ones, both in the network's order.

    The order of a set differs between processes, and so would sums over its members.
    """
    names = dict.fromkeys(name for name, _ in net.named_parameters())
    return names, tuple(name for name in names if name in set(trained))


def _to_single(value: Tensor) -> Tensor:
    """Return a detached tensor, in single precision if it is in bfloat16."""
    return value.detach().float() if value.dtype == torch.bfloat16 else value.detach()


def _grads(outputs: Sequence[Tensor], by_outputs: Sequence[Tensor | None], weights: list[Tensor]) -> Sequence[Tensor]:
    """Return the gradients by ``weights`` of a loss with gradients ``by_outputs``; None is zero."""
    if not weights:
        return []
    with torch.enable_grad():
        # Differentiate one number: given ``grad_outputs``, torch.autograd.grad imports SymPy, which takes a second.
        pairs = zip(outputs, by_outputs, strict=True)
        loss = sum(((output * grad).sum() for output, grad in pairs if grad is not None), torch.zeros(()))
    return torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)


class AutogradNetwork(StackedNetwork):
    """Passes of one model at a time, on the worker's network, by autograd."""

    one_at_a_time = True

    def __init__(self, net: nn.Module, trained: Collection[str], precision: str) -> None:
        self.parameters, self.trained = own_names(net, trained)
        self._net, self._precision = net, precision
        self._state = parameters.state(net)
        self._weights = {name: value.requires_grad_() for name, value in net.named_parameters()}

    def forward(self, params: Stacked, x: Tensor, weight: Tensor | None = None) -> Outputs:
        """Return the outputs of the only model of ``params`` (1, ...) for ``x`` (1, n, ...), in training mode."""
        with torch.no_grad():
            for name, value in self._state.items():
                value.copy_(params[name][0])
        with torch.enable_grad(), torch.autocast(x.device.type, torch.bfloat16, enabled=self._precision == "bfloat16"):
            z = self._net.body(x[0])  # type: ignore[operator]
            logits = self._net.head(z)  # type: ignore[operator]
        with torch.no_grad():
            for name, value in self._state.items():
                if name not in self.parameters and self._net.training:
                    params[name][0].copy_(value)
        return Outputs(_to_single(logits)[None], _to_single(z)[None], (logits, z))

    def backward(
        self, outputs: Outputs, logits: Tensor | None, z: Tensor | None = None, names: Collection[str] | None = None
    ) -> Stacked:
        """Return the gradients (1, ...) by the parameters ``names``, see ``StackedNetwork``."""
        names = self.trained if names is None else names
        weights, grads = [self._weights[name] for name in names], [None if g is None else g[0] for g in (logits, z)]
        return {name: value[None] for name, value in zip(names, _grads(outputs.trace, grads, weights), strict=True)}


class VmappedNetwork(StackedNetwork):
    """Passes of a stack of any network, as one batched program."""

    def __init__(self, net: nn.Module, trained: Collection[str], precision: str) -> None:
        self.parameters, self.trained = own_names(net, trained)
        self._net, self._precision = net, precision
        self._aliases = parameters.aliases(net)

    def forward(self, params: Stacked, x: Tensor, weight: Tensor | None = None) -> Outputs:
        """Return the outputs of the models ``params`` (a, ...) for ``x`` (a, n, ...), in training mode."""
        # Copy, because other threads change other rows of the same tensor in place before the backward pass.
        weights = {name: params[name].detach().clone().requires_grad_() for name in self.parameters}
        buffers = {name: value for name, value in params.items() if name in self._aliases and name not in weights}
        with torch.enable_grad(), torch.autocast(x.device.type, torch.bfloat16, enabled=self._precision == "bfloat16"):
            logits, z = vmap(self._one)(weights, buffers, x)
        return Outputs(_to_single(logits), _to_single(z), (logits, z, weights))

    def _one(self, weights: parameters.Params, buffers: parameters.Params, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self._call("body", {**weights, **buffers}, x)
        return self._call("head", {**weights, **buffers}, z), z

    def _call(self, part: str, params: parameters.Params, x: Tensor) -> Tensor:
        aliased = ((alias, value) for name, value in params.items() for alias in self._aliases.get(name, ()))
        own = {alias.removeprefix(f"{part}."): value for alias, value in aliased if alias.startswith(f"{part}.")}
        # With tie_weights torch would leave the values of this call in a module that has two names.
        out: Tensor = functional_call(getattr(self._net, part), own, (x,), tie_weights=False)
        return out

    def backward(
        self, outputs: Outputs, logits: Tensor | None, z: Tensor | None = None, names: Collection[str] | None = None
    ) -> Stacked:
        """Return the gradients (a, ...) by the parameters ``names``, see ``StackedNetwork``."""
        names = self.trained if names is None else names
        *own, weights = outputs.trace
        leaves = [weights[name] for name in names]
        return dict(zip(names, _grads(own, (logits, z), leaves), strict=True))
