"""Trains the models of many clients as one stack, or of one client as a stack of one.

Clients are sorted by their number of steps, so that those that still train are always the first rows of the stack.
Shorter minibatches are padded with samples of weight zero. There is no DataLoader, deepcopy or state dict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.core import parameters, rng
from pflcli.core.engine.augmentation import augment
from pflcli.core.engine.federation import Federation
from pflcli.core.engine.gradients import Pass, StackedBatch
from pflcli.core.engine.local_sgd import LEAST_WEIGHT, LocalSGD, is_stacked, learnable, widths
from pflcli.core.engine.networks import ObjectiveNetwork, has_batch_norm
from pflcli.core.engine.optimizer import Optimizer
from pflcli.core.engine.strategy import Strategy, WorkerNet
from pflcli.core.parameters import Params, Stacked


@dataclass(frozen=True, eq=False)
class Task:
    """Clients that one worker trains; their models are at ``places`` (m,) of a chunk, whose plan is ``plan``."""

    mode: str
    places: NDArray[np.int64]
    clients: NDArray[np.int64]
    plan: LocalSGD
    seed: int
    key: tuple[Any, ...]
    rows: NDArray[np.int64] | None = None
    """rows of the federation on which the only client trains, instead of its own samples"""

    def each(self) -> list[Task]:
        """Return one task for each client."""
        clients = range(len(self.clients))
        return [replace(self, places=self.places[i : i + 1], clients=self.clients[i : i + 1]) for i in clients]


@dataclass(frozen=True)
class Schedule:
    """All steps of clients (m,), one client after the other; ``counts`` (m,) are the clients' numbers of steps.

    A step has ``rows`` (t, n) of the federation, the ``weight`` (t, n) of these samples, which is zero for padding at
    the end, the number of samples without padding, ``sizes`` (t,), and the learning rate ``lr`` (t,). Gradient rules
    draw from the clients' generators ``draws`` (m,) after it.
    """

    counts: NDArray[np.int64]
    rows: NDArray[np.int64]
    weight: NDArray[np.float32]
    sizes: NDArray[np.int64]
    lr: NDArray[np.float32]
    draws: list[np.random.Generator]

    @classmethod
    def draw(
        cls,
        data: Federation,
        task: Task,
        *,
        pads: bool = False,
        join_single: bool = False,
    ) -> Schedule:
        """Draw the steps of a task; with ``pads``, minibatches are as wide as any stack's, else as the longest one."""
        plan, draws = task.plan, [rng.generator(task.seed, *task.key, client) for client in task.clients.tolist()]
        batches: list[NDArray[np.int64]] = []
        factors: list[NDArray[np.float32]] = []
        rates: list[float] = []
        counts = []
        for client, place, draw in zip(task.clients.tolist(), task.places.tolist(), draws, strict=True):
            own, before = data.rows(client, *plan.splits), len(batches)
            for chosen, rate in plan.schedule(place, len(own), draw, join_single=join_single):
                batches.append(own[chosen])
                rates.append(rate)
                if plan.sample_weights is not None:
                    factors.append(np.maximum(plan.sample_weights[place].cpu().numpy()[chosen], LEAST_WEIGHT))
            counts.append(len(batches) - before)
        sizes = np.asarray([len(batch) for batch in batches], np.int64)
        width = int(widths(data.sizes(*plan.splits)[task.clients], plan.batch_size).max(initial=1)) if pads else 1
        is_sample = np.arange(sizes.max(initial=width)) < sizes[:, None]
        # Pad with a sample of the client: others could overflow, and a weight of zero would turn that into nan.
        rows = np.repeat(np.asarray([batch[0] for batch in batches], np.int64)[:, None], is_sample.shape[1], axis=1)
        weight = (is_sample / np.maximum(sizes, 1)[:, None]).astype(np.float32)
        if batches:
            rows[is_sample] = np.concatenate(batches)
        if factors:
            weight[is_sample] *= np.concatenate(factors)
        return cls(np.asarray(counts), rows, weight, sizes, np.asarray(rates, np.float32), draws)

    def by_step(self, device: torch.device, *, cuts: bool) -> tuple[NDArray[np.int64], list[tuple[Tensor, ...]]]:
        """Return the clients (m,) in the order of a stack, those with most steps first, and the steps of the stack.

        These are the ``rows``, ``weight`` and ``lr`` of the first steps of all clients, then of their second ones, and
        so on. With ``cuts``, each step is as wide as its longest minibatch.
        """
        order = np.argsort(-self.counts, kind="stable")
        number = np.arange(len(self.lr)) - np.repeat(np.cumsum(self.counts) - self.counts, self.counts)
        at, clients = np.lexsort((np.repeat(np.argsort(order), self.counts), number)), np.bincount(number).tolist()
        arrays = self.rows[at], self.weight[at], self.lr[at]
        steps = list(
            zip(*(torch.from_numpy(array).to(device).split_with_sizes(clients) for array in arrays), strict=True)
        )
        if cuts:
            longest = [int(each.max()) for each in torch.from_numpy(self.sizes[at]).split_with_sizes(clients)]
            steps = [(rows[:, :n], weight[:, :n], lr) for (rows, weight, lr), n in zip(steps, longest, strict=True)]
        return order, steps


@dataclass(frozen=True)
class Worker:
    """What one worker trains with: its network, a strategy for it, and the samples."""

    net: WorkerNet
    strategy: Strategy
    data: Federation

    def train(self, task: Task, start: Params | Stacked, out: Stacked) -> NDArray[np.float64]:
        """Train the task's clients as one stack into their places in ``out``, and return their mean losses (m,).

        ``start`` is one model, or contains the clients' models at their places, as the plan contains their constants.
        The stack trains in memory of its own, which fits into the cache.
        """
        if self.strategy.train is not None:
            return np.asarray(self.strategy.train(self, task, start, out))
        data, plan, like = self.data, task.plan, {name: value[0] for name, value in out.items()}
        names, net = learnable(self.net.net, like, plan.trainable), self.net.net
        network = self.strategy.network(names)
        schedule = Schedule.draw(data, task, pads=not network.one_at_a_time, join_single=has_batch_norm(net))
        order, steps = schedule.by_step(data.y.device, cuts=network.one_at_a_time)
        rows, draws = task.places[order], [schedule.draws[index] for index in order]
        if is_stacked(start, like):
            models = {name: start[name].index_select(0, torch.from_numpy(rows).to(data.y.device)) for name in out}
        else:
            models = {name: start[name].repeat(len(rows), *[1] * value.ndim) for name, value in like.items()}
        plan = plan.for_clients(rows, like)
        optimizer = Optimizer(plan.update, {name: models[name] for name in names})
        # Images are changed of one client at a time.
        image_draw = rng.generator(task.seed, "augment", *task.key, int(task.clients[0])) if plan.augment else None
        total = torch.zeros(len(rows), dtype=torch.float64, device=data.y.device)
        for samples, weight, rate in steps:
            active = len(rate)
            x = data.inputs(samples.flatten())
            if image_draw is not None:
                x = augment(x, plan.augment, image_draw, data.scale)
            x, y = x.view(*samples.shape, *data.in_shape), data.y[samples]
            moved, own = ({n: v[:active] for n, v in values.items()} for values in (models, plan.own))
            batch = StackedBatch(x, y, weight, own, plan.shared, data.task, draws[:active])
            with torch.no_grad():
                optimizer.begin(rate if len(rows) > 1 else float(rate), active)
                if plan.gradient is not None:
                    losses, grads = plan.gradient(network, moved, batch)
                    optimizer.add({name: grads[name] for name in names})
                elif plan.objective is not None:
                    assert isinstance(network, ObjectiveNetwork)
                    losses, grads = network.differentiate(plan.objective, moved, batch, names)
                    optimizer.add(grads)
                else:
                    passes = (
                        plan.pass_rule(network, moved, batch) if plan.pass_rule else [Pass(moved, batch, plan.loss)]
                    )
                    losses = network.step(moved, passes[0], optimizer)
                    for each in passes[1:]:
                        losses = losses + network.step(moved, each, optimizer)
                optimizer.step()
            total[:active] += losses
        parameters.write_rows(out, rows, models)
        means = (total / torch.from_numpy(np.maximum(schedule.counts[order], 1)).to(total.device)).cpu().numpy()
        return np.asarray(means[np.argsort(order)])
