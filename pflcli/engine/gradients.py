"""Forward and backward passes of a stack of models, for methods that compute the gradients of their clients themselves.

A ``GradientRule`` says what a client's gradients are, in terms of passes of the network: a method with two models or an
inner loop takes two or more passes per step. The network runs in its fastest form, and nothing but the network is
differentiated automatically. All tensors have a leading axis over the clients of a stack, which may be one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from pflcli import parameters
from pflcli.engine.cpu.program import Program
from pflcli.parameters import Stacked


@dataclass(frozen=True)
class StackedBatch:
    """Minibatches ``x`` (a, n, ...), ``y`` (a, n), ``own`` constants (a, ...), and constants ``shared`` by all clients.

    ``weight`` (a, n) adds up to one for each client, unless samples have weights of their own; it is zero for padding.
    ``draws`` (a,) are the clients' generators, for rules that draw. ``rate`` (a,) are learning rates, if ``descend`` is
    to take the step: where it is one of plain SGD, and the network a ``DescendingNetwork``.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    own: Stacked
    shared: parameters.Params
    draws: Sequence[np.random.Generator] = ()
    rate: Tensor | None = None


@dataclass(frozen=True)
class Outputs:
    """Logits (a, n, C) and representations ``z`` (a, n, d) of a forward pass, and what its backward pass needs."""

    logits: Tensor
    z: Tensor
    trace: Any


class StackedNetwork(Protocol):
    """Passes of one network. Take the backward pass of some outputs before the next forward pass, or never."""

    @property
    def parameters(self) -> Collection[str]:
        """The names of the network's parameters, in its order, without buffers."""

    @property
    def trained(self) -> Collection[str]:
        """Those of them that the clients train."""

    def forward(self, params: Stacked, x: Tensor, weight: Tensor | None = None) -> Outputs:
        """Return the outputs of the models ``params`` (a, ...) for ``x`` (a, n, ...), in training mode.

        ``params`` has every parameter and buffer of the network; statistics of BatchNorm are updated in place. Samples
        of ``weight`` (a, n) zero at the end of a client's batch may be left out: their outputs are then zeros, and
        gradients by these are taken for zero.
        """

    def backward(
        self, outputs: Outputs, logits: Tensor | None, z: Tensor | None = None, names: Collection[str] | None = None
    ) -> Stacked:
        """Return the gradients (a, ...) of parameters, by default the trained ones, for gradients of the outputs.

        ``logits`` (a, n, C) and ``z`` (a, n, d) are the gradients of the loss by the logits, and by the
        representations where the loss does not go through the head. ``logits`` may be overwritten.
        """


GradientRule = Callable[[StackedNetwork, Stacked, StackedBatch], tuple[Tensor, Stacked]]
"""Returns losses (a,) and the gradients of all trained tensors (a, ...) but those that ``descend`` moved; defined in
a module, so that processes can import it."""


@runtime_checkable
class DescendingNetwork(Protocol):
    """A network that moves models along gradients which it does not write to memory."""

    def descend(self, outputs: Outputs, logits: Tensor, z: Tensor | None = None, models: Stacked | None = None) -> None:
        """Subtract the gradients that ``backward`` returns from the trained parameters of ``models`` (a, ...)."""


def descend(
    network: StackedNetwork,
    models: Stacked,
    batch: StackedBatch,
    outputs: Outputs,
    logits: Tensor,
    z: Tensor | None = None,
) -> Stacked:
    """Return the gradients (a, ...) along which the trained parameters of ``models`` (a, ...) are to descend.

    Where a step is that of plain SGD, and the network takes it without gradients in memory, it is taken here and
    nothing is returned. So a rule reads ``models`` before it calls this, and passes them on as it got them.
    """
    if batch.rate is None:
        return network.backward(outputs, logits, z)
    rate, descending = batch.rate[:, None, None], cast("DescendingNetwork", network)  # an instance check takes longer
    descending.descend(outputs, logits * rate, None if z is None else z * rate, models)
    return {}


def cross_entropy(logits: Tensor, y: Tensor, weight: Tensor, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the losses (a,) of logits (a, n, C), weighted by ``weight`` (a, n), and their gradients by the logits.

    The gradients are multiplied by the ``scale`` (a,) of each client.
    """
    logp, true = torch.log_softmax(logits, dim=2), y[..., None]
    losses = -(logp.gather(2, true)[..., 0] * weight).sum(dim=1)
    grad = logp.exp_().scatter_add_(2, true, torch.full_like(true, -1, dtype=logp.dtype))
    return losses, grad.mul_((weight if scale is None else weight * scale[:, None])[..., None])


def gradient(
    network: StackedNetwork,
    params: Stacked,
    batch: StackedBatch,
    names: Collection[str] | None = None,
    scale: Tensor | None = None,
    models: Stacked | None = None,
) -> tuple[Tensor, Stacked]:
    """Return the cross-entropy (a,) of the models ``params`` (a, ...), and its gradients (a, ...).

    The gradients are multiplied by the ``scale`` (a,) of each client. Given ``models`` (a, ...), these ``descend``.
    """
    outputs = network.forward(params, batch.x, batch.weight)
    losses, grad = cross_entropy(outputs.logits, batch.y, batch.weight, scale)
    if models is not None:
        return losses, descend(network, models, batch, outputs, grad)
    return losses, network.backward(outputs, grad, names=names)


@runtime_checkable
class ProximalNetwork(Protocol):
    """A network that takes proximal steps without gradients in memory."""

    def proximal_steps(
        self, params: Stacked, anchor: Stacked, batch: StackedBatch, *, lam: float, rate: float, count: int
    ) -> None:
        """Do as the function of this name."""


def proximal_steps(
    network: StackedNetwork,
    params: Stacked,
    anchor: Stacked,
    batch: StackedBatch,
    *,
    lam: float,
    rate: float,
    count: int = 1,
) -> None:
    """Take ``count`` steps of gradient descent in place, on the cross-entropy F(params) + lam / 2 |params - anchor|^2.

    ``params`` and ``anchor`` are models (a, ...); only trained parameters change.
    """
    if isinstance(network, ProximalNetwork):
        network.proximal_steps(params, anchor, batch, lam=lam, rate=rate, count=count)
        return
    weights, centres = [params[name] for name in network.trained], [anchor[name] for name in network.trained]
    for _ in range(count):
        step = gradient(network, params, batch)[1]
        grads = [step[name] for name in network.trained]
        if lam:
            torch._foreach_add_(grads, torch._foreach_sub(weights, centres), alpha=lam)
        torch._foreach_add_(weights, grads, alpha=-rate)


def _own_names(net: nn.Module, trained: Collection[str]) -> tuple[Collection[str], tuple[str, ...]]:
    """Return the names of the network's parameters, and those that are trained, both in its order.

    A set would have another order in each process, and so would sums over its members.
    """
    names = dict.fromkeys(name for name, _ in net.named_parameters())
    return names, tuple(name for name in names if name in set(trained))


def _single(value: Tensor) -> Tensor:
    """Return a constant, in single precision if it is in half."""
    return value.detach().float() if value.dtype == torch.bfloat16 else value.detach()


def _grads(outputs: Sequence[Tensor], by_outputs: Sequence[Tensor | None], weights: list[Tensor]) -> Sequence[Tensor]:
    """Return the gradients by ``weights`` of a loss with gradients ``by_outputs``, None being zero."""
    if not weights:
        return []
    with torch.enable_grad():
        # As one number: with gradients of outputs torch.autograd.grad imports a second of symbolic algebra.
        pairs = zip(outputs, by_outputs, strict=True)
        loss = sum(((output * grad).sum() for output, grad in pairs if grad is not None), torch.zeros(()))
    return torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)


class AutogradNetwork:
    """Passes of one model at a time, on the resident network, by autograd."""

    def __init__(self, net: nn.Module, trained: Collection[str], precision: str) -> None:
        self.parameters, self.trained = _own_names(net, trained)
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
        return Outputs(_single(logits)[None], _single(z)[None], (logits, z))

    def backward(
        self, outputs: Outputs, logits: Tensor | None, z: Tensor | None = None, names: Collection[str] | None = None
    ) -> Stacked:
        """Return the gradients (1, ...) of parameters for gradients of the outputs."""
        names = self.trained if names is None else names
        weights, grads = [self._weights[name] for name in names], [None if g is None else g[0] for g in (logits, z)]
        return {name: value[None] for name, value in zip(names, _grads(outputs.trace, grads, weights), strict=True)}


class CompiledNetwork:
    """Passes of one model at a time by a compiled program, in training mode and for more than one sample."""

    def __init__(self, net: nn.Module, trained: Collection[str], program: Program) -> None:
        self.parameters, self.trained = _own_names(net, trained)
        self._program, self._state = program, parameters.state(net)

    def forward(self, params: Stacked, x: Tensor, weight: Tensor | None = None) -> Outputs:
        """Return the outputs of the only model of ``params`` (1, ...) for ``x`` (1, n, ...), in training mode."""
        with torch.no_grad():
            for name, value in self._state.items():
                value.copy_(params[name][0])
            logits, z = self._program.forward(x[0])
            for name, value in self._state.items():
                if name not in self.parameters:
                    params[name][0].copy_(value)
        return Outputs(logits.clone()[None], z[None], len(x[0]))

    def backward(
        self, outputs: Outputs, logits: Tensor | None, z: Tensor | None = None, names: Collection[str] | None = None
    ) -> Stacked:
        """Return the gradients (1, ...) of parameters for gradients of the outputs."""
        names = self.trained if names is None else names
        if not names:
            return {}
        logits = torch.zeros_like(outputs.logits) if logits is None else logits
        self._program.backward(outputs.trace, logits[0], None if z is None else z[0])
        return {name: self._program.grads[name].clone()[None] for name in names}


class VmappedNetwork:
    """Passes of a stack of any network, as one batched program."""

    def __init__(self, net: nn.Module, trained: Collection[str], precision: str) -> None:
        self.parameters, self.trained = _own_names(net, trained)
        self._net, self._precision = net, precision
        self._aliases = parameters.aliases(net)

    def forward(self, params: Stacked, x: Tensor, weight: Tensor | None = None) -> Outputs:
        """Return the outputs of the models ``params`` (a, ...) for ``x`` (a, n, ...), in training mode."""
        # Copies, as other threads change other rows of the same tensor in place before the backward pass.
        weights = {name: params[name].detach().clone().requires_grad_() for name in self.parameters}
        buffers = {name: value for name, value in params.items() if name in self._aliases and name not in weights}
        with torch.enable_grad(), torch.autocast(x.device.type, torch.bfloat16, enabled=self._precision == "bfloat16"):
            logits, z = vmap(self._one)(weights, buffers, x)
        return Outputs(_single(logits), _single(z), (logits, z, weights))

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
        """Return the gradients (a, ...) of parameters for gradients of the outputs."""
        names = self.trained if names is None else names
        *own, weights = outputs.trace
        leaves = [weights[name] for name in names]
        return dict(zip(names, _grads(own, (logits, z), leaves), strict=True))
