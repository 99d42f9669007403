"""The **loop** mode: one client after the other on the worker's network.

Parameters are copied in place, minibatches are slices of the epoch's permuted samples, gradients come from
``torch.autograd.grad`` and updates go through ``torch._foreach_*``, without DataLoader, deepcopy, optimizer objects or
state dicts. Networks with a compiled program do not need autograd.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pflcli import parameters
from pflcli.engine import backend
from pflcli.engine.augmentation import augment
from pflcli.engine.backend import Program
from pflcli.engine.federation import Federation
from pflcli.engine.gradients import StackedBatch, StackedNetwork
from pflcli.engine.local_sgd import Batch, LocalSGD, Model, learnable
from pflcli.engine.networks import AutogradNetwork
from pflcli.engine.optimizer import Update
from pflcli.parameters import Params


def has_batch_norm(net: nn.Module) -> bool:
    """Whether a model normalizes over its batch; not if its statistics are frozen, as under an adapter."""
    norms = [module for module in net.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    return any(not getattr(norm, "is_frozen", False) for norm in norms)


def train_client(
    net: nn.Module,
    data: Federation,
    client: int,
    start: Params,
    out: Params,
    plan: LocalSGD,
    draw: np.random.Generator,
    program: Program | None = None,
    image_draw: np.random.Generator | None = None,
) -> float:
    """Train one client on ``net`` from ``start`` into ``out`` (may be views); returns its mean loss.

    ``plan`` is that of this client alone: its constants, anchor and learning rates have no axis over clients. Without
    a compiled ``program`` gradients come from autograd. ``image_draw`` draws the changes of images,
    if the plan has any.
    """
    if plan.gradient:
        for name, value in start.items():
            out[name].copy_(value)
        start = out  # trained in place
    trainer = _Ruled if plan.gradient else _Objective if plan.objective else _Plain
    client_trainer = trainer(net, start, plan, program, draw)
    rows = torch.from_numpy(data.rows(client, *plan.splits))
    x, y = data.inputs(rows), data.y[rows]
    normalizes = has_batch_norm(net)
    net.train(not plan.frozen_norm)
    total, steps = torch.zeros((), dtype=torch.float64, device=y.device), 0
    for order, rate in list(plan.schedule(0, len(rows), draw, join_single=normalizes)):
        batch = torch.from_numpy(order).to(y.device)
        if normalizes and not plan.frozen_norm:
            # BatchNorm has no variance over one value: a lone sample trains with the running statistics.
            net.train(len(batch) > 1)
        weight = None if plan.sample_weights is None else plan.sample_weights[batch] / len(batch)
        inputs = x[batch] if image_draw is None else augment(x[batch], plan.augment, image_draw, data.scale)
        total += client_trainer.step(inputs, y[batch], weight, rate).detach()
        steps += 1
    with torch.no_grad():
        for name, value in client_trainer.state.items():
            out[name].copy_(value)
    return float(total) / max(steps, 1)


class _Plain:
    """Trains the worker's network itself by its cross-entropy."""

    def __init__(
        self, net: nn.Module, start: Params, plan: LocalSGD, program: Program | None, draw: np.random.Generator
    ) -> None:
        self._net, self._plan, self._program = net, plan, program
        self.state = parameters.state(net)
        parameters.load(net, start)
        trained = {name: value for name, value in net.named_parameters() if name.startswith(plan.trainable)}
        self._names = tuple(trained)
        self._weights: list[Tensor] = [value.requires_grad_() for value in trained.values()]
        self._update = Update(plan, self._names, self._weights)
        # Plain SGD needs no gradient of its own: the product that would compute it changes the weights.
        moving = program.linear if program and self._update.is_plain else frozenset()
        self._inside = {name: value.detach() for name, value in trained.items() if name in moving}
        self._outside = {name: value for name, value in trained.items() if name not in moving}
        outside = list(self._outside), list(self._outside.values())
        self._update_outside = Update(plan, *outside) if self._inside else self._update  # which has the momentum

    def step(self, x: Tensor, y: Tensor, weight: Tensor | None, rate: float) -> Tensor:
        """Take one step on ``x`` (n, ...), ``y`` (n,) and return the loss; ``weight`` (n,) replaces the plain mean."""
        if self._program and (self._net.training or self._program.infers):
            place, inside = self._names.index, self._inside.items()
            moves = {name: self._update.move(place(name), weight, rate) for name, weight in inside}
            loss = self._program.step(x, y, weight, self._names, moves)
            weights: list[Tensor] = [*self._outside.values()]
            update = self._update_outside
            grads = [self._program.grads[name] for name in self._outside]
        else:
            with torch.autocast(x.device.type, torch.bfloat16, enabled=self._plan.precision == "bfloat16"):
                if weight is None:
                    loss = functional.cross_entropy(self._net(x), y)
                else:
                    loss = Batch(x, y, weight).cross_entropy(self._net(x))
            weights, update = self._weights, self._update
            grads = list(torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True))
        with torch.no_grad():
            update(weights, grads, rate)
        return loss


class _Objective:
    """Trains the tensors of a start by an objective of the method."""

    def __init__(
        self, net: nn.Module, start: Params, plan: LocalSGD, program: Program | None, draw: np.random.Generator
    ) -> None:
        assert plan.objective is not None
        self._objective, self._model, self._plan = plan.objective, Model(net), plan
        self.state = {name: value.clone() for name, value in start.items()}
        names = [name for name in learnable(net, self.state) if name.startswith(plan.trainable)]
        self._weights = [self.state[name].requires_grad_() for name in names]
        self._update = Update(plan, names, self._weights)

    def step(self, x: Tensor, y: Tensor, weight: Tensor | None, rate: float) -> Tensor:
        """Take one step on ``x`` (n, ...), ``y`` (n,) and return the loss."""
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self._plan.precision == "bfloat16"):
            batch = Batch(x, y, weight, self._plan.own, self._plan.shared)
            loss = self._objective(self._model, self.state, batch)
        grads = list(torch.autograd.grad(loss, self._weights, allow_unused=True, materialize_grads=True))
        with torch.no_grad():
            self._update(self._weights, grads, rate)
        return loss


class _Ruled:
    """Trains the tensors of a start in place, as a stack of one client, by a gradient rule of the method."""

    def __init__(
        self, net: nn.Module, start: Params, plan: LocalSGD, program: Program | None, draw: np.random.Generator
    ) -> None:
        assert plan.gradient is not None
        self._rule, self._net, self._shared, self._draws = plan.gradient, net, plan.shared, [draw]
        self.state = start
        self._models = {name: value[None] for name, value in self.state.items()}
        self._own = {name: value[None] for name, value in plan.own.items()}
        self._names = [name for name in learnable(net, self.state) if name.startswith(plan.trainable)]
        self._update = Update(plan, self._names, [self._models[name] for name in self._names])
        self._network: StackedNetwork = AutogradNetwork(net, self._names, plan.precision)
        self._compiled: StackedNetwork = backend.network(net, self._names, program) if program else self._network
        self._evaluates = self._compiled if program and program.infers else self._network
        self._descends = self._update.is_bare and program is not None

    @torch.no_grad()
    def step(self, x: Tensor, y: Tensor, weight: Tensor | None, rate: float) -> Tensor:
        """Take one step on ``x`` (n, ...), ``y`` (n,) and return the loss; ``weight`` (n,) replaces the plain mean."""
        even = x.new_full(y.shape, 1 / len(y), dtype=torch.float32) if weight is None else weight
        network = self._compiled if self._net.training else self._evaluates
        descends = self._descends and network is self._compiled
        rates = x.new_tensor([rate]) if descends else None
        batch = StackedBatch(x[None], y[None], even[None], self._own, self._shared, self._draws, rates)
        losses, grads = self._rule(network, self._models, batch)
        names = [name for name in self._names if name in grads] if descends else self._names
        self._update([self._models[name] for name in names], [grads[name] for name in names], rate)
        return losses[0]
