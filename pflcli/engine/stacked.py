"""The **stacked** mode trains the models of many clients as one batched program.

Clients are sorted by their number of steps, so that those that still train are always the first rows of the stack.
Shorter batches are padded with samples of weight zero. BatchNorm's statistics cannot ignore those: under BatchNorm,
clients whose batches have the same size take the step together instead. Chains of linear layers train without
autograd, other networks by ``torch.func``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from pflcli.engine.cpu import linear_chain
from pflcli.engine.federation import Federation
from pflcli.engine.local_sgd import Batch, LocalSGD, Model, is_stacked, learnable, widths
from pflcli.engine.loop import has_batch_norm
from pflcli.engine.optimizer import Update
from pflcli.parameters import Params, Stacked


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
    start: Params | Stacked,
    out: Stacked,
    plan: LocalSGD,
    layers: list[linear_chain.Layer] | None = None,
) -> NDArray[np.float64]:
    """Train ``clients`` as one stack into ``out`` (m, ...) and return their mean losses (m,).

    ``draws`` holds each client's generator of minibatches. ``start`` is one model, or a stack in the clients' order, as
    ``plan`` is. Given ``layers``, the network is a chain of linear layers and trains without autograd.
    """
    like = {name: value[0] for name, value in out.items()}
    schedules = [
        _steps(data.rows(int(client), *plan.splits), plan, index, draw, join_single=has_batch_norm(net))
        for index, (client, draw) in enumerate(zip(clients, draws, strict=True))
    ]
    order = np.argsort([-len(steps) for steps in schedules], kind="stable")
    width = int(widths(data.sizes(*plan.splits)[clients], plan.batch_size).max(initial=0))
    schedule = _padded([schedules[index] for index in order], width, data.y.device)
    sorted_already = bool((order == np.arange(len(order))).all())
    rows = torch.from_numpy(order).to(data.y.device)
    own_start = is_stacked(start, like)
    models = out if sorted_already else {name: torch.empty_like(value) for name, value in out.items()}
    for name, value in models.items():
        value.copy_(start[name][rows] if own_start and not sorted_already else start[name])
    losses = _run(
        _program(net, models, plan if sorted_already else plan.for_clients(order, like), layers), data, schedule
    )
    if not sorted_already:
        for name, value in models.items():
            out[name][rows] = value
    return np.asarray(losses[np.argsort(order)])


def _run(program: linear_chain.Trainer | _Vmapped, data: Federation, schedule: _Schedule) -> NDArray[np.float64]:
    total = torch.zeros(len(schedule.steps), dtype=torch.float64, device=data.y.device)
    for s in range(schedule.steps.max(initial=0)):
        active = int((schedule.steps > s).sum())
        rows = schedule.rows[:active, s]
        x = data.inputs(rows.flatten()).view(*rows.shape, *data.in_shape)
        total[:active] += program.step(x, data.y[rows], schedule.weight[:active, s], schedule.lr[:active, s])
    steps = torch.from_numpy(np.maximum(schedule.steps, 1)).to(total.device)
    return np.asarray((total / steps).cpu().numpy())


def _program(
    net: nn.Module, models: Stacked, plan: LocalSGD, layers: list[linear_chain.Layer] | None
) -> linear_chain.Trainer | _Vmapped:
    return _Vmapped(net, models, plan) if layers is None else linear_chain.Trainer(layers, models, plan)


class _Vmapped:
    """Trains a stack ``models`` (m, ...) of any network, by any objective, with ``torch.func``."""

    def __init__(self, net: nn.Module, models: Stacked, plan: LocalSGD) -> None:
        self._models, self._plan = models, plan
        self._own, self._by_size = plan.own, has_batch_norm(net) and not plan.frozen_norm
        candidates = (
            models if plan.objective is not None else {name: models[name] for name, _ in net.named_parameters()}
        )
        self._names = [name for name in learnable(net, candidates) if name.startswith(plan.trainable)]
        self._update = Update(plan, [models[name] for name in self._names], plan.anchors(self._names))
        self._net = net.train(not plan.frozen_norm)
        model = Model(net)

        def loss(weights: Params, fixed: Params, own: Params, x: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
            batch = Batch(x, y, weight, own, plan.shared)
            with torch.autocast(x.device.type, torch.bfloat16, enabled=plan.precision == "bfloat16"):
                params = {**fixed, **weights}
                return plan.objective(model, params, batch) if plan.objective else batch.cross_entropy(model(params, x))

        self._loss = grad_and_value(loss)

    def step(self, x: Tensor, y: Tensor, weight: Tensor, rate: Tensor) -> Tensor:
        """Take one step on ``x`` (a, n, ...), ``y`` (a, n); ``weight`` (a, n) adds up to one; ``rate`` (a,)."""
        active = len(x)
        if not self._by_size:
            grads, losses = self._grads(slice(active), x, y, weight)
        else:
            grads, losses = self._grads_by_size(x, y, (weight > 0).sum(dim=1))
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

    def _grads_by_size(self, x: Tensor, y: Tensor, sizes: Tensor) -> tuple[Stacked, Tensor]:
        """Return the gradients (a, ...) of clients, computed together for those whose batches have the same size."""
        grads = {name: torch.empty_like(self._models[name][: len(x)]) for name in self._names}
        losses = x.new_empty(len(x))
        for size in torch.unique(sizes).tolist():
            rows = torch.nonzero(sizes == size)[:, 0]
            # BatchNorm has no variance over one value: a lone sample trains with the running statistics.
            self._net.train(size > 1)
            group_grads, losses[rows] = self._grads(rows, x[rows, :size], y[rows, :size], None)
            for name, value in group_grads.items():
                grads[name][rows] = value
        return grads, losses


def _steps(
    rows: NDArray[np.int64], plan: LocalSGD, index: int, draw: np.random.Generator, *, join_single: bool
) -> list[tuple[NDArray[np.int64], float]]:
    """Return one client's minibatches, as rows of the federation, with their learning rates."""
    schedule = plan.schedule(index, len(rows), draw, torch.device("cpu"), join_single=join_single)
    return [(rows[batch.numpy()], rate) for batch, rate in schedule]


def _padded(plans: list[list[tuple[NDArray[np.int64], float]]], width: int, device: torch.device) -> _Schedule:
    steps = np.asarray([len(steps) for steps in plans])
    shape = (len(plans), int(steps.max(initial=0)), max((width, *(len(b) for p in plans for b, _ in p))))
    rows, weight, lr = np.zeros(shape, np.int64), np.zeros(shape, np.float32), np.zeros(shape[:2], np.float32)
    for index, client in enumerate(plans):
        for s, (batch, rate) in enumerate(client):
            # Pad with the client's own samples: a weight of zero turns a value that overflowed into nan.
            rows[index, s] = batch[0]
            rows[index, s, : len(batch)] = batch
            weight[index, s, : len(batch)] = 1 / len(batch)
            lr[index, s] = rate
    tensors = [torch.from_numpy(array).to(device) for array in (rows, weight, lr)]
    return _Schedule(tensors[0], tensors[1], tensors[2], steps)
