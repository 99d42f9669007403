"""The **stacked** mode trains the models of many clients as one batched program.

Clients are sorted by their number of steps, so that those that still train are always the first rows of the stack.
Shorter batches are padded with samples of weight zero. The statistics of BatchNorm cannot ignore padding, so networks
with BatchNorm take a step separately for each batch size. Chains of linear layers train without autograd, and other
networks by ``torch.func``. In lockstep, the clients pass through one network, one after the other in each step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from pflcli import parameters
from pflcli.engine import backend, linear_chain
from pflcli.engine.federation import Federation
from pflcli.engine.gradients import StackedBatch, StackedNetwork, cross_entropy, cross_entropy_rule
from pflcli.engine.linear_chain import ChainNetwork, Layer
from pflcli.engine.local_sgd import LEAST_WEIGHT, Batch, LocalSGD, Model, is_stacked, learnable, widths
from pflcli.engine.loop import has_batch_norm
from pflcli.engine.networks import AutogradNetwork, VmappedNetwork
from pflcli.engine.optimizer import Optimizer
from pflcli.engine.strategy import Strategy
from pflcli.parameters import Params, Stacked


@dataclass(frozen=True)
class _Step:
    """A minibatch of one client: ``rows`` (n,) of the federation, their ``weight`` (n,), and the learning rate."""

    rows: NDArray[np.int64]
    weight: NDArray[np.float32]
    rate: float


@dataclass(frozen=True)
class _Schedule:
    """Every step of every client: ``rows`` and ``weight`` (m, steps, batch), ``lr`` (m, steps), ``steps`` (m,)."""

    rows: Tensor
    weight: Tensor
    lr: Tensor
    steps: NDArray[np.int64]


def train_stack(
    net: nn.Module,
    data: Federation,
    clients: NDArray[np.int64],
    draws: list[np.random.Generator],
    places: NDArray[np.int64],
    start: Params | Stacked,
    out: Stacked,
    plan: LocalSGD,
    strategy: Strategy,
) -> NDArray[np.float64]:
    """Train ``clients`` (m,) as one stack into ``places`` (m,) of ``out``, and return their mean losses (m,).

    ``draws`` are the clients' generators of minibatches. ``start`` is one model, or contains the clients' models at
    ``places``, as ``plan`` contains their constants. The stack trains in memory of its own, which fits into the cache.
    """
    like = {name: value[0] for name, value in out.items()}
    join_single = strategy.layers is None and has_batch_norm(net)
    schedules = [
        _list_steps(data.rows(int(client), *plan.splits), plan, int(place), draw, join_single=join_single)
        for client, place, draw in zip(clients, places, draws, strict=True)
    ]
    order = np.argsort([-len(steps) for steps in schedules], kind="stable")
    width = int(widths(data.sizes(*plan.splits)[clients], plan.batch_size).max(initial=0))
    schedule = _pad([schedules[index] for index in order], width, data.y.device)
    rows = places[order]
    if is_stacked(start, like):
        models = {name: start[name].index_select(0, torch.from_numpy(rows).to(data.y.device)) for name in out}
    else:
        models = {name: start[name].repeat(len(rows), *[1] * value.ndim) for name, value in like.items()}
    own_draws = [draws[index] for index in order]
    trainer = _create_trainer(net, models, plan.for_clients(rows, like), strategy, own_draws)
    total = torch.zeros(len(schedule.steps), dtype=torch.float64, device=data.y.device)
    for s in range(schedule.steps.max(initial=0)):
        active = int((schedule.steps > s).sum())  # clients with more steps come first
        samples = schedule.rows[:active, s]
        x = data.inputs(samples.flatten()).view(*samples.shape, *data.in_shape)
        total[:active] += trainer.step(x, data.y[samples], schedule.weight[:active, s], schedule.lr[:active, s])
    parameters.write_rows(out, rows, models)
    losses = (total / torch.from_numpy(np.maximum(schedule.steps, 1)).to(total.device)).cpu().numpy()
    return np.asarray(losses[np.argsort(order)])


class _Trainer(Protocol):
    """Trains a stack of models in place. Its first rows are the clients that still train."""

    def step(self, x: Tensor, y: Tensor, weight: Tensor, rate: Tensor) -> Tensor:
        """Take one step on ``x`` (a, n, ...), ``y`` (a, n), and return the losses (a,).

        The ``weight`` (a, n) of samples adds up to one for each client, unless samples have weights of their own. It is
        zero for padding. ``rate`` (a,) are learning rates.
        """


def _create_trainer(
    net: nn.Module, models: Stacked, plan: LocalSGD, strategy: Strategy, draws: list[np.random.Generator]
) -> _Trainer:
    if plan.objective is not None:
        return _ObjectiveTrainer(net, models, plan)
    if strategy.layers is not None and plan.gradient is None:
        return _ChainTrainer(strategy.layers, models, plan)
    return _RuleTrainer(net, models, plan, strategy, draws)


class _ChainTrainer:
    """Trains a stack of chains of linear layers by the cross-entropy."""

    def __init__(self, layers: list[Layer], models: Stacked, plan: LocalSGD) -> None:
        self._models = models
        names = [name for name in models if name.startswith(plan.trainable)]
        # A chain that pays to compile takes all plain steps in ``accelerated/steps.py`` instead.
        weights = [models[layer.weight][0] for layer in layers]
        self._network = ChainNetwork(layers, names) if plan.is_plain else linear_chain.network(layers, names, weights)
        self._names = tuple(self._network.trained)
        self._optimizer = Optimizer(plan, self._names, [models[name] for name in self._names])

    def step(self, x: Tensor, y: Tensor, weight: Tensor, rate: Tensor) -> Tensor:
        """Take one step on ``x`` (a, n, ...), ``y`` (a, n), and return the losses (a,)."""
        models = {name: value[: len(x)] for name, value in self._models.items()}
        outputs = self._network.forward(models, x, weight)
        # Plain SGD needs no gradient tensor: the product that would compute the gradient changes the weights.
        losses, grad = cross_entropy(outputs.logits, y, weight, rate if self._optimizer.is_plain else None)
        if self._optimizer.is_plain:
            index = self._names.index
            self._network.pull_and_subtract(
                outputs, grad, None, models, lambda name: self._optimizer.pull(index(name), models[name], rate)
            )
        else:
            grads = self._network.backward(outputs, grad)
            self._optimizer.step([models[name] for name in self._names], [grads[name] for name in self._names], rate)
        return losses


def _create_network(net: nn.Module, names: list[str], plan: LocalSGD, strategy: Strategy) -> StackedNetwork:
    """Return the passes of the network, of which the parameters ``names`` are trained."""
    if strategy.layers:
        weights = [net.get_parameter(layer.weight) for layer in strategy.layers]
        return linear_chain.network(strategy.layers, names, weights)
    if strategy.program:
        compiled: StackedNetwork = backend.part("program").CompiledNetwork(net, names, strategy.program)
        return compiled
    return (AutogradNetwork if strategy.lockstep else VmappedNetwork)(net, names, plan.precision)


class _RuleTrainer:
    """Trains a stack ``models`` (m, ...) by the gradient rule of a method, or by the gradient of the cross-entropy."""

    def __init__(
        self, net: nn.Module, models: Stacked, plan: LocalSGD, strategy: Strategy, draws: list[np.random.Generator]
    ) -> None:
        self._rule, self._models, self._plan, self._draws = plan.gradient or cross_entropy_rule, models, plan, draws
        self._names = [name for name in learnable(net, models) if name.startswith(plan.trainable)]
        self._optimizer = Optimizer(plan, self._names, [models[name] for name in self._names])
        self._net = net if strategy.layers else net.train(not plan.frozen_norm)
        self._by_size = strategy.layers is None and has_batch_norm(net) and not plan.frozen_norm
        self._network = _create_network(net, self._names, plan, strategy)
        self._subtracts = self._optimizer.is_bare and strategy.layers is not None

    @torch.no_grad()
    def step(self, x: Tensor, y: Tensor, weight: Tensor, rate: Tensor) -> Tensor:
        """Take one step on ``x`` (a, n, ...), ``y`` (a, n), and return the losses (a,)."""
        active = len(x)
        if not self._by_size:
            losses, grads = self._compute(slice(active), x, y, weight, rate if self._subtracts else None)
        else:
            grads = {name: torch.empty_like(self._models[name][:active]) for name in self._names}
            losses = x.new_empty(active)
            for size, rows in _rows_by_size(weight):
                self._net.train(size > 1)
                losses[rows], group = self._compute(rows, x[rows, :size], y[rows, :size], weight[rows, :size])
                for name in self._names:
                    grads[name][rows] = group[name]
        names = [name for name in self._names if name in grads] if self._subtracts else self._names
        self._optimizer.step([self._models[n][:active] for n in names], [grads[n] for n in names], rate)
        return losses

    def _compute(
        self, rows: slice | Tensor, x: Tensor, y: Tensor, weight: Tensor, rate: Tensor | None = None
    ) -> tuple[Tensor, Stacked]:
        """Return the losses and gradients of the clients at ``rows``."""
        models = {name: value[rows] for name, value in self._models.items()}
        own = {name: value[rows] for name, value in self._plan.own.items()}
        draws = self._draws[rows] if isinstance(rows, slice) else [self._draws[row] for row in rows.tolist()]
        batch = StackedBatch(x, y, weight, own, self._plan.shared, draws, rate)
        losses, grads = self._rule(self._network, models, batch)
        if not isinstance(rows, slice):
            for name, value in models.items():  # the forward pass changed buffers in these copies
                if name not in self._names:
                    self._models[name][rows] = value
        return losses, grads


def _rows_by_size(weight: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield each size of the clients' batches, and the clients that have it; ``weight`` (a, n) is zero for padding.

    BatchNorm has no variance over one value, so callers train a single sample with the running statistics.
    """
    sizes = (weight > 0).sum(dim=1)
    for size in torch.unique(sizes).tolist():
        yield size, torch.nonzero(sizes == size)[:, 0]


class _ObjectiveTrainer:
    """Trains a stack ``models`` (m, ...) by the loss of a method, with ``torch.func``."""

    def __init__(self, net: nn.Module, models: Stacked, plan: LocalSGD) -> None:
        assert plan.objective is not None
        self._models, self._own, self._by_size = models, plan.own, has_batch_norm(net) and not plan.frozen_norm
        self._names = [name for name in learnable(net, models) if name.startswith(plan.trainable)]
        self._optimizer = Optimizer(plan, self._names, [models[name] for name in self._names])
        self._net = net.train(not plan.frozen_norm)
        model, objective = Model(net), plan.objective

        def loss(weights: Params, fixed: Params, own: Params, x: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
            with torch.autocast(x.device.type, torch.bfloat16, enabled=plan.precision == "bfloat16"):
                return objective(model, {**fixed, **weights}, Batch(x, y, weight, own, plan.shared))

        self._loss = grad_and_value(loss)

    def step(self, x: Tensor, y: Tensor, weight: Tensor, rate: Tensor) -> Tensor:
        """Take one step on ``x`` (a, n, ...), ``y`` (a, n), and return the losses (a,)."""
        active = len(x)
        if not self._by_size:
            grads, losses = self._compute(slice(active), x, y, weight)
        else:
            grads = {name: torch.empty_like(self._models[name][:active]) for name in self._names}
            losses = x.new_empty(active)
            for size, rows in _rows_by_size(weight):
                self._net.train(size > 1)
                group, losses[rows] = self._compute(rows, x[rows, :size], y[rows, :size], None)
                for name, value in group.items():
                    grads[name][rows] = value
        weights = [self._models[name][:active] for name in self._names]
        self._optimizer.step(weights, [grads[name] for name in self._names], rate)
        return losses

    def _compute(self, rows: slice | Tensor, x: Tensor, y: Tensor, weight: Tensor | None) -> tuple[Stacked, Tensor]:
        """Return the gradients and losses of the clients at ``rows``; a ``weight`` of None is the plain mean."""
        fixed = {name: value[rows] for name, value in self._models.items()}
        weights = {name: fixed.pop(name) for name in self._names}
        own = {name: value[rows] for name, value in self._own.items()}
        batched = vmap(self._loss, in_dims=(0, 0, 0, 0, 0, None if weight is None else 0))
        grads, losses = batched(weights, fixed, own, x, y, weight)
        if not isinstance(rows, slice):
            for name, value in fixed.items():  # the forward pass changed buffers in these copies
                self._models[name][rows] = value
        return grads, losses


def _list_steps(
    rows: NDArray[np.int64], plan: LocalSGD, index: int, draw: np.random.Generator, *, join_single: bool
) -> list[_Step]:
    """Return one client's steps."""
    steps = []
    for batch, rate in plan.schedule(index, len(rows), draw, join_single=join_single):
        weight = np.full(len(batch), 1 / len(batch), np.float32)
        if plan.sample_weights is not None:
            weight *= np.maximum(plan.sample_weights[index].cpu().numpy()[batch], LEAST_WEIGHT)
        steps.append(_Step(rows[batch], weight, rate))
    return steps


def _pad(clients: list[list[_Step]], width: int, device: torch.device) -> _Schedule:
    """Return the clients' steps with minibatches padded to ``width``, or to the longest of them."""
    counts = np.asarray([len(steps) for steps in clients])
    longest = max((len(step.rows) for steps in clients for step in steps), default=0)
    shape = (len(clients), int(counts.max(initial=0)), max(width, longest))
    rows, weight, lr = np.zeros(shape, np.int64), np.zeros(shape, np.float32), np.zeros(shape[:2], np.float32)
    for index, steps in enumerate(clients):
        for s, step in enumerate(steps):
            # Pad with samples of the client: others could overflow, and a weight of zero would turn that into nan.
            rows[index, s] = step.rows[0]
            rows[index, s, : len(step.rows)] = step.rows
            weight[index, s, : len(step.rows)] = step.weight
            lr[index, s] = step.rate
    tensors = [torch.from_numpy(array).to(device) for array in (rows, weight, lr)]
    return _Schedule(tensors[0], tensors[1], tensors[2], counts)
