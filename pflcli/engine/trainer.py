"""Trains the models of many clients as one stack, or of one client as a stack of one.

Clients are sorted by their number of steps, so that those that still train are always the first rows of the stack.
Shorter minibatches are padded with samples of weight zero. There is no DataLoader, deepcopy or state dict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli import parameters
from pflcli.engine.augmentation import augment
from pflcli.engine.federation import Federation
from pflcli.engine.gradients import Pass, StackedBatch, StackedNetwork
from pflcli.engine.local_sgd import LEAST_WEIGHT, LocalSGD, is_stacked, learnable, widths
from pflcli.engine.networks import ObjectiveNetwork, has_batch_norm
from pflcli.engine.optimizer import Optimizer
from pflcli.engine.strategy import Strategy, WorkerNet
from pflcli.engine.task import Classification
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
    sizes: NDArray[np.int64]
    """samples in each step (m, steps), without padding"""


class Trainer:
    """Trains a stack of ``models`` (m, ...) in place by a plan. Its first rows are the clients that still train."""

    def __init__(
        self,
        network: StackedNetwork,
        names: Sequence[str],
        models: Stacked,
        plan: LocalSGD,
        task: Classification,
        draws: Sequence[np.random.Generator],
    ) -> None:
        self._network, self._names, self._models, self._plan = network, names, models, plan
        self._task, self._draws = task, draws
        self._optimizer = Optimizer(plan.update, {name: models[name] for name in names})

    @torch.no_grad()
    def step(self, x: Tensor, y: Tensor, weight: Tensor, rate: float | Tensor) -> Tensor:
        """Take one step on ``x`` (a, n, ...), ``y`` (a, n), and return the losses (a,).

        The ``weight`` (a, n) of samples adds up to one for each client, unless samples have weights of their own. It is
        zero for padding. ``rate`` is a learning rate, or (a,).
        """
        count, plan, network, optimizer = len(x), self._plan, self._network, self._optimizer
        models, own = ({n: v[:count] for n, v in values.items()} for values in (self._models, plan.own))
        batch = StackedBatch(x, y, weight, own, plan.shared, self._task, self._draws[:count])
        optimizer.begin(rate, count)
        if plan.gradient is not None:
            losses, grads = plan.gradient(network, models, batch)
            optimizer.add({name: grads[name] for name in self._names})
        elif plan.objective is not None:
            assert isinstance(network, ObjectiveNetwork)
            losses, grads = network.differentiate(plan.objective, models, batch, self._names)
            optimizer.add(grads)
        else:
            passes = plan.pass_rule(network, models, batch) if plan.pass_rule else [Pass(models, batch, plan.loss)]
            losses = network.step(models, passes[0], optimizer)
            for each in passes[1:]:
                losses = losses + network.step(models, each, optimizer)
        optimizer.step()
        return losses


def train(
    worker_net: WorkerNet,
    strategy: Strategy,
    data: Federation,
    clients: NDArray[np.int64],
    draws: list[np.random.Generator],
    places: NDArray[np.int64],
    start: Params | Stacked,
    out: Stacked,
    plan: LocalSGD,
    image_draw: np.random.Generator | None = None,
) -> NDArray[np.float64]:
    """Train ``clients`` (m,) as one stack into ``places`` (m,) of ``out``, and return their mean losses (m,).

    ``draws`` are the clients' generators of minibatches. ``start`` is one model, or contains the clients' models at
    ``places``, as ``plan`` contains their constants. The stack trains in memory of its own, which fits into the cache.
    ``image_draw`` draws the random changes of the images of an only client.
    """
    like = {name: value[0] for name, value in out.items()}
    names = learnable(worker_net.net, like, plan.trainable)
    network = strategy.network(names)
    joins_single = has_batch_norm(worker_net.net)
    schedules = [
        _list_steps(data.rows(int(client), *plan.splits), plan, int(place), draw, join_single=joins_single)
        for client, place, draw in zip(clients, places, draws, strict=True)
    ]
    order = np.argsort([-len(steps) for steps in schedules], kind="stable")
    pads = (
        0 if network.one_at_a_time else int(widths(data.sizes(*plan.splits)[clients], plan.batch_size).max(initial=0))
    )
    schedule = _pad([schedules[index] for index in order], pads, data.y.device)
    rows = places[order]
    if is_stacked(start, like):
        models = {name: start[name].index_select(0, torch.from_numpy(rows).to(data.y.device)) for name in out}
    else:
        models = {name: start[name].repeat(len(rows), *[1] * value.ndim) for name, value in like.items()}
    own_plan, own_draws = plan.for_clients(rows, like), [draws[index] for index in order]
    trainer = Trainer(network, names, models, own_plan, data.task, own_draws)
    total = torch.zeros(len(schedule.steps), dtype=torch.float64, device=data.y.device)
    for s in range(schedule.steps.max(initial=0)):
        active = int((schedule.steps > s).sum())  # clients with more steps come first
        width = int(schedule.sizes[:active, s].max()) if network.one_at_a_time else schedule.rows.shape[2]
        samples, rate = schedule.rows[:active, s, :width], schedule.lr[:active, s]
        x = data.inputs(samples.flatten())
        if image_draw is not None:
            x = augment(x, plan.augment, image_draw, data.scale)
        x = x.view(*samples.shape, *data.in_shape)
        total[:active] += trainer.step(
            x, data.y[samples], schedule.weight[:active, s, :width], rate if len(clients) > 1 else float(rate)
        )
    parameters.write_rows(out, rows, models)
    losses = (total / torch.from_numpy(np.maximum(schedule.steps, 1)).to(total.device)).cpu().numpy()
    return np.asarray(losses[np.argsort(order)])


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
    return _Schedule(tensors[0], tensors[1], tensors[2], counts, (weight > 0).sum(axis=2))
