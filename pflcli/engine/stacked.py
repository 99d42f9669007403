"""The **stacked** mode trains the models of many clients as one batched program.

Clients are sorted by their number of steps, so that those that still train are always the first rows of the stack.
Shorter batches are padded with samples of weight zero. BatchNorm's statistics cannot ignore those: under BatchNorm,
clients whose batches have the same size take the step together instead. Chains of linear layers train without
autograd, other networks by ``torch.func``, or one after the other in each step where clients train in lockstep.
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
from pflcli.engine.gradients import StackedBatch, StackedNetwork, cross_entropy_rule
from pflcli.engine.local_sgd import LEAST_WEIGHT, Batch, LocalSGD, Model, is_stacked, learnable, widths
from pflcli.engine.loop import has_batch_norm
from pflcli.engine.networks import AutogradNetwork, VmappedNetwork
from pflcli.engine.optimizer import Update
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
    how: Strategy,
) -> NDArray[np.float64]:
    """Train ``clients`` (m,) as one stack into ``places`` (m,) of ``out``, and return their mean losses (m,).

    ``draws`` holds each client's generator of minibatches. ``start`` is one model, or has the clients' models at their
    places, where ``plan`` has what is their own. Meanwhile the stack, which fits into a cache, lies by itself.
    """
    like = {name: value[0] for name, value in out.items()}
    join_single = how.layers is None and has_batch_norm(net)
    schedules = [
        _steps(data.rows(int(client), *plan.splits), plan, int(place), draw, join_single=join_single)
        for client, place, draw in zip(clients, places, draws, strict=True)
    ]
    order = np.argsort([-len(steps) for steps in schedules], kind="stable")
    width = int(widths(data.sizes(*plan.splits)[clients], plan.batch_size).max(initial=0))
    schedule = _padded([schedules[index] for index in order], width, data.y.device)
    rows = places[order]
    if is_stacked(start, like):
        models = {name: start[name].index_select(0, torch.from_numpy(rows).to(data.y.device)) for name in out}
    else:
        models = {name: start[name].repeat(len(rows), *[1] * value.ndim) for name, value in like.items()}
    own_draws = [draws[index] for index in order]
    trainer = _trainer(net, models, plan.for_clients(rows, like), how, own_draws)
    total = torch.zeros(len(schedule.steps), dtype=torch.float64, device=data.y.device)
    for s in range(schedule.steps.max(initial=0)):
        active = int((schedule.steps > s).sum())  # the first ones, as the clients with most steps come first
        samples = schedule.rows[:active, s]
        x = data.inputs(samples.flatten()).view(*samples.shape, *data.in_shape)
        total[:active] += trainer.step(x, data.y[samples], schedule.weight[:active, s], schedule.lr[:active, s])
    parameters.write_rows(out, rows, models)
    losses = (total / torch.from_numpy(np.maximum(schedule.steps, 1)).to(total.device)).cpu().numpy()
    return np.asarray(losses[np.argsort(order)])


def _trainer(
    net: nn.Module,
    models: Stacked,
    plan: LocalSGD,
    how: Strategy,
    draws: list[np.random.Generator],
) -> _Trainer:
    if plan.objective is not None:
        return _Objective(net, models, plan)
    if how.layers is not None and plan.gradient is None:
        return linear_chain.Trainer(how.layers, models, plan)
    return _Ruled(net, models, plan, how, draws)


def _network(net: nn.Module, names: list[str], plan: LocalSGD, how: Strategy) -> StackedNetwork:
    """Return the passes of the network, of which ``names`` are trained."""
    if how.layers:
        return linear_chain.network(how.layers, names, [net.get_parameter(layer.weight) for layer in how.layers])
    if how.program:
        compiled: StackedNetwork = backend.network(net, names, how.program)
        return compiled
    return (AutogradNetwork if how.lockstep else VmappedNetwork)(net, names, plan.precision)


class _Trainer(Protocol):
    """Trains a stack of models in place; its first rows are always those that still train."""

    def step(self, x: Tensor, y: Tensor, weight: Tensor, rate: Tensor) -> Tensor:
        """Take one step on ``x`` (a, n, ...), ``y`` (a, n), and return the losses (a,).

        ``weight`` (a, n) is zero for padding, ``rate`` (a,) holds learning rates.
        """


class _Ruled:
    """Trains a stack ``models`` (m, ...) by a gradient rule of the method, or by the gradient of the cross-entropy."""

    def __init__(
        self,
        net: nn.Module,
        models: Stacked,
        plan: LocalSGD,
        how: Strategy,
        draws: list[np.random.Generator],
    ) -> None:
        self._rule, self._models, self._plan, self._draws = plan.gradient or cross_entropy_rule, models, plan, draws
        self._names = [name for name in learnable(net, models) if name.startswith(plan.trainable)]
        self._update = Update(plan, self._names, [models[name] for name in self._names])
        self._net = net if how.layers else net.train(not plan.frozen_norm)
        self._by_size = how.layers is None and has_batch_norm(net) and not plan.frozen_norm
        self._network = _network(net, self._names, plan, how)
        self._descends = self._update.is_bare and how.layers is not None  # networks of chains can

    @torch.no_grad()
    def step(self, x: Tensor, y: Tensor, weight: Tensor, rate: Tensor) -> Tensor:
        """Take one step on ``x`` (a, n, ...), ``y`` (a, n), and return the losses (a,)."""
        active = len(x)
        if not self._by_size:
            losses, grads = self._gradients(slice(active), x, y, weight, rate if self._descends else None)
        else:
            joined, losses = {n: torch.empty_like(self._models[n][:active]) for n in self._names}, x.new_empty(active)
            for size, rows in _rows_by_size(weight):
                self._net.train(size > 1)
                losses[rows], group = self._gradients(rows, x[rows, :size], y[rows, :size], weight[rows, :size])
                for name in self._names:
                    joined[name][rows] = group[name]
            grads = joined
        names = [name for name in self._names if name in grads] if self._descends else self._names
        self._update([self._models[n][:active] for n in names], [grads[n] for n in names], rate)
        return losses

    def _gradients(
        self, rows: slice | Tensor, x: Tensor, y: Tensor, weight: Tensor, rate: Tensor | None = None
    ) -> tuple[Tensor, Stacked]:
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

    BatchNorm has no variance over one value: a lone sample trains with the running statistics.
    """
    sizes = (weight > 0).sum(dim=1)
    for size in torch.unique(sizes).tolist():
        yield size, torch.nonzero(sizes == size)[:, 0]


class _Objective:
    """Trains a stack ``models`` (m, ...) by an objective of the method, with ``torch.func``."""

    def __init__(self, net: nn.Module, models: Stacked, plan: LocalSGD) -> None:
        assert plan.objective is not None
        self._models, self._own, self._by_size = models, plan.own, has_batch_norm(net) and not plan.frozen_norm
        self._names = [name for name in learnable(net, models) if name.startswith(plan.trainable)]
        self._update = Update(plan, self._names, [models[name] for name in self._names])
        self._net = net.train(not plan.frozen_norm)
        model, objective = Model(net), plan.objective

        def loss(weights: Params, fixed: Params, own: Params, x: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
            with torch.autocast(x.device.type, torch.bfloat16, enabled=plan.precision == "bfloat16"):
                return objective(model, {**fixed, **weights}, Batch(x, y, weight, own, plan.shared))

        self._loss = grad_and_value(loss)

    def step(self, x: Tensor, y: Tensor, weight: Tensor, rate: Tensor) -> Tensor:
        """Take one step on ``x`` (a, n, ...), ``y`` (a, n); ``weight`` (a, n) adds up to one; ``rate`` (a,)."""
        active = len(x)
        if not self._by_size:
            grads, losses = self._grads(slice(active), x, y, weight)
        else:
            grads, losses = self._grads_by_size(x, y, weight)
        self._update([self._models[name][:active] for name in self._names], [grads[name] for name in self._names], rate)
        return losses

    def _grads(self, rows: slice | Tensor, x: Tensor, y: Tensor, weight: Tensor | None) -> tuple[Stacked, Tensor]:
        fixed = {name: value[rows] for name, value in self._models.items()}
        weights = {name: fixed.pop(name) for name in self._names}
        own = {name: value[rows] for name, value in self._own.items()}
        batched = vmap(self._loss, in_dims=(0, 0, 0, 0, 0, None if weight is None else 0))
        grads, losses = batched(weights, fixed, own, x, y, weight)
        if not isinstance(rows, slice):
            for name, value in fixed.items():  # the forward pass changed buffers in these copies
                self._models[name][rows] = value
        return grads, losses

    def _grads_by_size(self, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Stacked, Tensor]:
        """Return the gradients (a, ...) of clients, computed together for those whose batches have the same size."""
        grads = {name: torch.empty_like(self._models[name][: len(x)]) for name in self._names}
        losses = x.new_empty(len(x))
        for size, rows in _rows_by_size(weight):
            self._net.train(size > 1)
            group_grads, losses[rows] = self._grads(rows, x[rows, :size], y[rows, :size], None)
            for name, value in group_grads.items():
                grads[name][rows] = value
        return grads, losses


def _steps(
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


def _padded(clients: list[list[_Step]], width: int, device: torch.device) -> _Schedule:
    counts = np.asarray([len(steps) for steps in clients])
    longest = max((len(step.rows) for steps in clients for step in steps), default=0)
    shape = (len(clients), int(counts.max(initial=0)), max(width, longest))
    rows, weight, lr = np.zeros(shape, np.int64), np.zeros(shape, np.float32), np.zeros(shape[:2], np.float32)
    for index, steps in enumerate(clients):
        for s, step in enumerate(steps):
            # Pad with the client's own samples: a weight of zero turns a value that overflowed into nan.
            rows[index, s] = step.rows[0]
            rows[index, s, : len(step.rows)] = step.rows
            weight[index, s, : len(step.rows)] = step.weight
            lr[index, s] = step.rate
    tensors = [torch.from_numpy(array).to(device) for array in (rows, weight, lr)]
    return _Schedule(tensors[0], tensors[1], tensors[2], counts)
