"""Passes of one model at a time by a compiled program."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from pflcli import parameters
from pflcli.accelerated import products
from pflcli.accelerated.program import Program
from pflcli.engine import tables
from pflcli.engine.gradients import OneModelNetwork, Outputs, StackedBatch
from pflcli.engine.networks import own_names
from pflcli.engine.optimizer_moves import Move
from pflcli.parameters import Stacked


class CompiledNetwork(OneModelNetwork):
    """Passes of one model at a time by a compiled program, in training mode and for more than one sample."""

    def __init__(self, net: nn.Module, trained: Collection[str], program: Program) -> None:
        self.parameters, self.trained = own_names(net, trained)
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
