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

from pflcli.core import parameters
from pflcli.core.engine.augmentation import augment
from pflcli.core.engine.federation import Federation
from pflcli.core.engine.gradients import Pass, StackedBatch
from pflcli.core.engine.local_sgd import LEAST_WEIGHT, LocalSGD, is_stacked, learnable, widths
from pflcli.core.engine.networks import ObjectiveNetwork, has_batch_norm
from pflcli.core.engine.optimizer import Optimizer
from pflcli.core.engine.strategy import Strategy, WorkerNet
from pflcli.core.parameters import Params, Stacked


@dataclass(frozen=True)
class Schedule:
    """All steps of clients (m,), one client after the other; ``counts`` (m,) are the clients' numbers of steps.

    A step has ``rows`` (t, n) of the federation, the ``weight`` (t, n) of these samples, which is zero for padding at
    the end, the number of samples without padding, ``sizes`` (t,), and the learning rate ``lr`` (t,).
    """

    counts: NDArray[np.int64]
    rows: NDArray[np.int64]
    weight: NDArray[np.float32]
    sizes: NDArray[np.int64]
    lr: NDArray[np.float32]

    @classmethod
    def draw(
        cls,
        data: Federation,
        clients: NDArray[np.int64],
        draws: Sequence[np.random.Generator],
        places: NDArray[np.int64],
        plan: LocalSGD,
        *,
        pads: bool = False,
        join_single: bool = False,
    ) -> Schedule:
        """Draw the steps of clients; with ``pads``, minibatches have their common width, else the longest one's."""
        batches: list[NDArray[np.int64]] = []
        factors: list[NDArray[np.float32]] = []
        rates: list[float] = []
        counts = []
        for client, place, draw in zip(clients.tolist(), places.tolist(), draws, strict=True):
            own, before = data.rows(client, *plan.splits), len(batches)
            for chosen, rate in plan.schedule(place, len(own), draw, join_single=join_single):
                batches.append(own[chosen])
                rates.append(rate)
                if plan.sample_weights is not None:
                    factors.append(np.maximum(plan.sample_weights[place].cpu().numpy()[chosen], LEAST_WEIGHT))
            counts.append(len(batches) - before)
        sizes = np.asarray([len(batch) for batch in batches], np.int64)
        width = int(widths(data.sizes(*plan.splits)[clients], plan.batch_size).max(initial=1)) if pads else 1
        is_sample = np.arange(sizes.max(initial=width)) < sizes[:, None]
        # Pad with a sample of the client: others could overflow, and a weight of zero would turn that into nan.
        rows = np.repeat(np.asarray([batch[0] for batch in batches], np.int64)[:, None], is_sample.shape[1], axis=1)
        weight = (is_sample / np.maximum(sizes, 1)[:, None]).astype(np.float32)
        if batches:
            rows[is_sample] = np.concatenate(batches)
        if factors:
            weight[is_sample] *= np.concatenate(factors)
        return cls(np.asarray(counts), rows, weight, sizes, np.asarray(rates, np.float32))

    @property
    def order(self) -> NDArray[np.int64]:
        """Return the clients (m,) by their numbers of steps, those that train longest first."""
        return np.argsort(-self.counts, kind="stable")

    def by_step(self, device: torch.device, *, cuts: bool) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return ``rows``, ``weight`` and ``lr`` of the clients' first steps in ``order``, then of their second, etc.

        With ``cuts``, each step is as wide as its longest minibatch.
        """
        number = np.arange(len(self.lr)) - np.repeat(np.cumsum(self.counts) - self.counts, self.counts)
        at = np.lexsort((np.repeat(np.argsort(self.order), self.counts), number))
        clients = np.bincount(number)
        arrays = self.rows[at], self.weight[at], self.lr[at]
        steps = zip(*(torch.from_numpy(array).to(device).split(clients.tolist()) for array in arrays), strict=True)
        if not cuts:
            return list(steps)
        longest = [int(each.max()) for each in torch.from_numpy(self.sizes[at]).split(clients.tolist())]
        return [(rows[:, :n], weight[:, :n], lr) for (rows, weight, lr), n in zip(steps, longest, strict=True)]


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
    names, joins_single = learnable(worker_net.net, like, plan.trainable), has_batch_norm(worker_net.net)
    network = strategy.network(names)
    schedule = Schedule.draw(
        data, clients, draws, places, plan, pads=not network.one_at_a_time, join_single=joins_single
    )
    order = schedule.order
    rows, draws = places[order], [draws[index] for index in order]
    if is_stacked(start, like):
        models = {name: start[name].index_select(0, torch.from_numpy(rows).to(data.y.device)) for name in out}
    else:
        models = {name: start[name].repeat(len(rows), *[1] * value.ndim) for name, value in like.items()}
    plan = plan.for_clients(rows, like)
    optimizer = Optimizer(plan.update, {name: models[name] for name in names})
    total = torch.zeros(len(rows), dtype=torch.float64, device=data.y.device)
    for samples, weight, rate in schedule.by_step(data.y.device, cuts=network.one_at_a_time):
        active = len(rate)
        x = data.inputs(samples.flatten())
        if image_draw is not None:
            x = augment(x, plan.augment, image_draw, data.scale)
        x, y = x.view(*samples.shape, *data.in_shape), data.y[samples]
        moved, own = ({n: v[:active] for n, v in values.items()} for values in (models, plan.own))
        batch = StackedBatch(x, y, weight, own, plan.shared, data.task, draws[:active])
        with torch.no_grad():
            optimizer.begin(rate if len(clients) > 1 else float(rate), active)
            if plan.gradient is not None:
                losses, grads = plan.gradient(network, moved, batch)
                optimizer.add({name: grads[name] for name in names})
            elif plan.objective is not None:
                assert isinstance(network, ObjectiveNetwork)
                losses, grads = network.differentiate(plan.objective, moved, batch, names)
                optimizer.add(grads)
            else:
                passes = plan.pass_rule(network, moved, batch) if plan.pass_rule else [Pass(moved, batch, plan.loss)]
                losses = network.step(moved, passes[0], optimizer)
                for each in passes[1:]:
                    losses = losses + network.step(moved, each, optimizer)
            optimizer.step()
        total[:active] += losses
    parameters.write_rows(out, rows, models)
    means = (total / torch.from_numpy(np.maximum(schedule.counts[order], 1)).to(total.device)).cpu().numpy()
    return np.asarray(means[np.argsort(order)])
