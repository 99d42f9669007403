"""Forms in which any network passes stacks of models forward and backward: autograd, a program, torch.func."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from pflcli import parameters
from pflcli.engine import tables
from pflcli.engine.cpu.memory import Move
from pflcli.engine.cpu.program import Program
from pflcli.engine.gradients import OneModelNetwork, Outputs, StackedBatch
from pflcli.parameters import Stacked


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


class AutogradNetwork(OneModelNetwork):
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


class CompiledNetwork(OneModelNetwork):
    """Passes of one model at a time by a compiled program, in training mode and for more than one sample."""

    def __init__(self, net: nn.Module, trained: Collection[str], program: Program) -> None:
        self.parameters, self.trained = _own_names(net, trained)
        self._program, self._state = program, parameters.state(net)

    def forward(self, params: Stacked, x: Tensor, weight: Tensor | None = None) -> Outputs:
        """Return the outputs of the only model of ``params`` (1, ...) for ``x`` (1, n, ...), in training mode."""
        with torch.no_grad():
            self._program.load({name: params[name][0] for name in self._state})
            logits, z = self._program.forward(x[0])
            for name, value in self._state.items():
                if name not in self.parameters:
                    params[name][0].copy_(value)
        return Outputs(logits.clone()[None], z.clone()[None], len(x[0]))  # the next batch overwrites them

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

    def descend(self, outputs: Outputs, logits: Tensor | None, z: Tensor | None, models: Stacked) -> None:
        """Subtract the gradients from the trained parameters of ``models`` (1, ...)."""
        moves = {name: Move(models[name][0], 1.0) for name in self.trained if name in self._program.linear}
        rest = [name for name in self.trained if name not in moves]
        logits = torch.zeros_like(outputs.logits) if logits is None else logits
        self._program.backward(outputs.trace, logits[0], None if z is None else z[0], self.trained, moves)
        if rest:
            torch._foreach_sub_([models[name][0] for name in rest], [self._program.grads[name] for name in rest])

    def proximal_steps(
        self, params: Stacked, anchor: Stacked, batch: StackedBatch, *, lam: float, rate: float, count: int
    ) -> None:
        """Take steps in place, those of a model one after the other, see ``pflcli.engine.gradients``."""
        inside = [name for name in self.trained if name in self._program.linear]
        rest = [name for name in self.trained if name not in inside]
        for row, size in enumerate(batch.sizes):
            model, centre = parameters.pick(params, row), parameters.pick(anchor, row) if lam else {}
            moves = {name: Move(model[name], rate, centre.get(name), rate * lam) for name in inside}
            own, grads = (batch.x[row, :size], batch.y[row, :size], batch.weight[row, :size]), self._program.grads
            for _ in range(count):
                with self._program.model(model):
                    self._program.step(*own, self.trained, moves)
                if lam and rest:
                    torch._foreach_lerp_([model[n] for n in rest], [centre[n] for n in rest], rate * lam)
                if rest:
                    torch._foreach_add_([model[name] for name in rest], [grads[name] for name in rest], alpha=-rate)

    def mixture_gradient(self, share: Tensor, models: Stacked, batch: StackedBatch) -> tuple[Tensor, Tensor]:
        """Do as the function of this name: the gradients of each mixture take its place in memory.

        With products of pfl's own a client's bits depend on no other.
        """
        from pflcli.engine.cpu import products

        mixed, losses = tables.mixtures(share, models, independent=True), torch.empty_like(share[:, 0])
        for row, size in enumerate(batch.sizes):
            moves = {name: Move(mixed[name][row], 0.0, replaces=True) for name in self._program.linear}
            own = batch.x[row, :size], batch.y[row, :size], batch.weight[row, :size]
            with self._program.model(parameters.pick(mixed, row)):
                losses[row] = self._program.step(*own, moves=moves)
            for name in self.parameters:
                if name not in moves:
                    mixed[name][row] = self._program.grads[name]
        by_share = torch.zeros_like(share)
        for name in self.parameters:
            products.add_inner_products(mixed[name].flatten(1), models[name].flatten(1), by_share)
        return losses, by_share


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
