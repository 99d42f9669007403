"""The **loop** mode trains one client after the other on the worker's network.

Parameters are copied in place, minibatches are rows of the client's samples, gradients come from
``torch.autograd.grad``, and updates go through ``torch._foreach_*``. There is no DataLoader, deepcopy, optimizer object
or state dict. Networks with a compiled program need no autograd.
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
from pflcli.engine.optimizer import Optimizer
from pflcli.parameters import Params


def has_batch_norm(net: nn.Module) -> bool:
    """Whether a model normalizes over its batch. It does not if its statistics are frozen, as under an adapter."""
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
    """Train one client on ``net`` from ``start`` into ``out``, which may be views, and return its mean loss.

    ``plan`` is the plan of this client alone: its constants, anchor and learning rates have no axis over clients.
    Gradients come from the compiled ``program`` or, without one, from autograd. ``image_draw`` draws the random changes
    of images, if the plan has any.
    """
    if plan.gradient:
        for name, value in start.items():
            out[name].copy_(value)
        start = out  # trained in place
    kind = _RuleTrainer if plan.gradient else _ObjectiveTrainer if plan.objective else _NetTrainer
    trainer = kind(net, start, plan, program, draw)
    rows = torch.from_numpy(data.rows(client, *plan.splits))
    x, y = data.inputs(rows), data.y[rows]
    normalizes = has_batch_norm(net)
    net.train(not plan.frozen_norm)
    total, steps = torch.zeros((), dtype=torch.float64, device=y.device), 0
    for order, rate in list(plan.schedule(0, len(rows), draw, join_single=normalizes)):
        batch = torch.from_numpy(order).to(y.device)
        if normalizes and not plan.frozen_norm:
            # BatchNorm has no variance over one value, so a single sample trains with the running statistics.
            net.train(len(batch) > 1)
        weight = None if plan.sample_weights is None else plan.sample_weights[batch] / len(batch)
        inputs = x[batch] if image_draw is None else augment(x[batch], plan.augment, image_draw, data.scale)
        total += trainer.step(inputs, y[batch], weight, rate).detach()
        steps += 1
    with torch.no_grad():
        for name, value in trainer.state.items():
            out[name].copy_(value)
    return float(total) / max(steps, 1)


class _NetTrainer:
    """Trains the parameters of the worker's network by its cross-entropy."""

    def __init__(
        self, net: nn.Module, start: Params, plan: LocalSGD, program: Program | None, draw: np.random.Generator
    ) -> None:
        self._net, self._plan, self._program = net, plan, program
        self.state = parameters.state(net)
        parameters.load(net, start)
        trained = {name: value for name, value in net.named_parameters() if name.startswith(plan.trainable)}
        self._names = tuple(trained)
        self._weights: list[Tensor] = [value.requires_grad_() for value in trained.values()]
        self._optimizer = Optimizer(plan, self._names, self._weights)
        # Plain SGD needs no gradient tensor: the product that would compute the gradient changes the weights.
        in_product = program.linear if program and self._optimizer.is_plain else frozenset()
        self._moved = {name: value.detach() for name, value in trained.items() if name in in_product}
        self._rest = {name: value for name, value in trained.items() if name not in in_product}
        rest = list(self._rest), list(self._rest.values())
        self._rest_optimizer = Optimizer(plan, *rest) if self._moved else self._optimizer  # keeps the momentum

    def step(self, x: Tensor, y: Tensor, weight: Tensor | None, rate: float) -> Tensor:
        """Take one step on ``x`` (n, ...), ``y`` (n,) and return the loss; ``weight`` (n,) replaces the plain mean."""
        if self._program and (self._net.training or self._program.infers):
            index, moved = self._names.index, self._moved.items()
            moves = {name: self._optimizer.move(index(name), weight, rate) for name, weight in moved}
            loss = self._program.step(x, y, weight, self._names, moves)
            weights: list[Tensor] = [*self._rest.values()]
            optimizer = self._rest_optimizer
            grads = [self._program.grads[name] for name in self._rest]
        else:
            with torch.autocast(x.device.type, torch.bfloat16, enabled=self._plan.precision == "bfloat16"):
                if weight is None:
                    loss = functional.cross_entropy(self._net(x), y)
                else:
                    loss = Batch(x, y, weight).cross_entropy(self._net(x))
            weights, optimizer = self._weights, self._optimizer
            grads = list(torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True))
        with torch.no_grad():
            optimizer.step(weights, grads, rate)
        return loss


class _ObjectiveTrainer:
    """Trains copies of the tensors of a start by the loss of a method."""

    def __init__(
        self, net: nn.Module, start: Params, plan: LocalSGD, program: Program | None, draw: np.random.Generator
    ) -> None:
        assert plan.objective is not None
        self._objective, self._model, self._plan = plan.objective, Model(net), plan
        self.state = {name: value.clone() for name, value in start.items()}
        names = [name for name in learnable(net, self.state) if name.startswith(plan.trainable)]
        self._weights = [self.state[name].requires_grad_() for name in names]
        self._optimizer = Optimizer(plan, names, self._weights)

    def step(self, x: Tensor, y: Tensor, weight: Tensor | None, rate: float) -> Tensor:
        """Take one step on ``x`` (n, ...), ``y`` (n,) and return the loss."""
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self._plan.precision == "bfloat16"):
            batch = Batch(x, y, weight, self._plan.own, self._plan.shared)
            loss = self._objective(self._model, self.state, batch)
        grads = list(torch.autograd.grad(loss, self._weights, allow_unused=True, materialize_grads=True))
        with torch.no_grad():
            self._optimizer.step(self._weights, grads, rate)
        return loss


class _RuleTrainer:
    """Trains the tensors of a start in place, as a stack of one client, by the gradient rule of a method."""

    def __init__(
        self, net: nn.Module, start: Params, plan: LocalSGD, program: Program | None, draw: np.random.Generator
    ) -> None:
        assert plan.gradient is not None
        self._rule, self._net, self._shared, self._draws = plan.gradient, net, plan.shared, [draw]
        self.state = start
        self._models = {name: value[None] for name, value in self.state.items()}
        self._own = {name: value[None] for name, value in plan.own.items()}
        self._names = [name for name in learnable(net, self.state) if name.startswith(plan.trainable)]
        self._optimizer = Optimizer(plan, self._names, [self._models[name] for name in self._names])
        by_autograd: StackedNetwork = AutogradNetwork(net, self._names, plan.precision)
        compiled = backend.part("program").CompiledNetwork(net, self._names, program) if program else by_autograd
        self._training_network: StackedNetwork = compiled
        self._evaluation_network = compiled if program and program.infers else by_autograd
        self._subtracts = self._optimizer.is_bare and program is not None

    @torch.no_grad()
    def step(self, x: Tensor, y: Tensor, weight: Tensor | None, rate: float) -> Tensor:
        """Take one step on ``x`` (n, ...), ``y`` (n,) and return the loss; ``weight`` (n,) replaces the plain mean."""
        even = x.new_full(y.shape, 1 / len(y), dtype=torch.float32) if weight is None else weight
        network = self._training_network if self._net.training else self._evaluation_network
        subtracts = self._subtracts and network is self._training_network
        rates = x.new_tensor([rate]) if subtracts else None
        batch = StackedBatch(x[None], y[None], even[None], self._own, self._shared, self._draws, rates)
        losses, grads = self._rule(network, self._models, batch)
        names = [name for name in self._names if name in grads] if subtracts else self._names
        self._optimizer.step([self._models[name] for name in names], [grads[name] for name in names], rate)
        return losses[0]
