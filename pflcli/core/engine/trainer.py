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
class _Schedule:
    """Every step of every client: ``rows`` and ``weight`` (m, steps, batch), ``lr`` (m, steps), ``steps`` (m,).

    Clients with more steps come first: ``order`` (m,) are their places among the clients that were asked for.
    """

    rows: Tensor
    weight: Tensor
    lr: Tensor
    steps: NDArray[np.int64]
    sizes: NDArray[np.int64]
    """samples in each step (m, steps), without padding"""
    order: NDArray[np.int64]


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
    schedule = _schedule(data, clients, draws, places, plan, pads=not network.one_at_a_time, join_single=joins_single)
    rows, draws = places[schedule.order], [draws[index] for index in schedule.order]
    if is_stacked(start, like):
        models = {name: start[name].index_select(0, torch.from_numpy(rows).to(data.y.device)) for name in out}
    else:
        models = {name: start[name].repeat(len(rows), *[1] * value.ndim) for name, value in like.items()}
    plan = plan.for_clients(rows, like)
    optimizer = Optimizer(plan.update, {name: models[name] for name in names})
    total = torch.zeros(len(rows), dtype=torch.float64, device=data.y.device)
    for s in range(schedule.steps.max(initial=0)):
        active = int((schedule.steps > s).sum())
        width = int(schedule.sizes[:active, s].max()) if network.one_at_a_time else schedule.rows.shape[2]
        samples, rate = schedule.rows[:active, s, :width], schedule.lr[:active, s]
        x = data.inputs(samples.flatten())
        if image_draw is not None:
            x = augment(x, plan.augment, image_draw, data.scale)
        x, y, weight = x.view(*samples.shape, *data.in_shape), data.y[samples], schedule.weight[:active, s, :width]
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
    means = (total / torch.from_numpy(np.maximum(schedule.steps, 1)).to(total.device)).cpu().numpy()
    return np.asarray(means[np.argsort(schedule.order)])


def _schedule(
    data: Federation,
    clients: NDArray[np.int64],
    draws: Sequence[np.random.Generator],
    places: NDArray[np.int64],
    plan: LocalSGD,
    *,
    pads: bool,
    join_single: bool,
) -> _Schedule:
    """Return the steps of clients; with ``pads``, minibatches have their common width, else the longest one's."""
    listed: list[list[tuple[NDArray[np.int64], NDArray[np.float32], float]]] = []
    for client, place, draw in zip(clients.tolist(), places.tolist(), draws, strict=True):
        own, steps = data.rows(client, *plan.splits), []
        for chosen, rate in plan.schedule(place, len(own), draw, join_single=join_single):
            share = np.full(len(chosen), 1 / len(chosen), np.float32)
            if plan.sample_weights is not None:
                share *= np.maximum(plan.sample_weights[place].cpu().numpy()[chosen], LEAST_WEIGHT)
            steps.append((own[chosen], share, rate))
        listed.append(steps)
    counts = np.asarray([len(steps) for steps in listed])
    order = np.argsort(-counts, kind="stable")
    width = int(widths(data.sizes(*plan.splits)[clients], plan.batch_size).max(initial=0)) if pads else 0
    width = max(width, max((len(own) for steps in listed for own, *_ in steps), default=0))
    shape = (len(clients), int(counts.max(initial=0)), width)
    rows, weight, lr = np.zeros(shape, np.int64), np.zeros(shape, np.float32), np.zeros(shape[:2], np.float32)
    for index, client_index in enumerate(order.tolist()):
        for s, (own, share, rate) in enumerate(listed[client_index]):
            # Pad with samples of the client: others could overflow, and a weight of zero would turn that into nan.
            rows[index, s] = own[0]
            rows[index, s, : len(own)] = own
            weight[index, s, : len(own)] = share
            lr[index, s] = rate
    tensors = [torch.from_numpy(array).to(data.y.device) for array in (rows, weight, lr)]
    return _Schedule(tensors[0], tensors[1], tensors[2], counts[order], (weight > 0).sum(axis=2), order)
