"""The **stacked** way: the models of many clients as one batched program (``torch.func``), for models so small that
the cost of starting operators rules.

Clients are sorted by their number of steps, so that those that still train are always the first of the stack; the rest
of a step's work is masked samples of a last, shorter batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional

from pflcli.fl.federation import Federation
from pflcli.fl.params import Params, Stacked
from pflcli.fl.plan import LocalSGD, batches


@dataclass(frozen=True)
class _Schedule:
    """Every step of every client: ``rows`` and ``weight`` (m, steps, batch), ``lr`` (m, steps), ``steps`` (m,)."""

    rows: Tensor
    weight: Tensor
    lr: Tensor
    steps: NDArray[np.int64]


def train(
    net: nn.Module,
    data: Federation,
    draws: dict[int, np.random.Generator],
    start: Params | Stacked,
    out: Stacked,
    plan: LocalSGD,
    *,
    own_starts: bool,
) -> NDArray[np.float64]:
    """Train the clients of ``draws`` side by side into ``out`` (m, ...) and return their mean losses (m,).

    ``draws`` gives each client's generator of minibatches; ``start`` is one model, or with ``own_starts`` a stack.
    """
    plans = [_steps(data.rows(client, *plan.splits), plan, draw) for client, draw in draws.items()]
    order = np.argsort([-len(steps) for steps in plans], kind="stable")
    schedule = _padded([plans[place] for place in order], plan, data.y.device)
    places = torch.from_numpy(order).to(data.y.device)
    names = [name for name, _ in net.named_parameters() if name.startswith(plan.trainable)]
    held = {
        name: value[places] if own_starts else value.expand(len(plans), *value.shape).clone()
        for name, value in start.items()
    }
    losses = _run(net, data, held, names, schedule, plan)
    for name, value in held.items():
        out[name][places] = value
    return np.asarray(losses[np.argsort(order)])


def _run(
    net: nn.Module, data: Federation, held: Stacked, names: list[str], schedule: _Schedule, plan: LocalSGD
) -> NDArray[np.float64]:
    def loss(weights: Params, fixed: Params, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        logits = functional_call(net, {**fixed, **weights}, (x,))
        return (functional.cross_entropy(logits, y, reduction="none") * weight).sum() / weight.sum()

    step = vmap(grad_and_value(loss))
    anchor = [plan.prox[0][name] for name in names] if plan.prox else []
    momentum = [torch.zeros_like(held[name]) for name in names] if plan.momentum else []
    total = torch.zeros(len(schedule.steps), dtype=torch.float64, device=data.y.device)
    for s in range(schedule.steps.max(initial=0)):
        active = int((schedule.steps > s).sum())
        rows = schedule.rows[:active, s]
        x = data.inputs(rows.flatten()).view(*rows.shape, *data.in_shape)
        weights = {name: held[name][:active] for name in names}
        fixed = {name: value[:active] for name, value in held.items() if name not in weights}
        grads, value = step(weights, fixed, x, data.y[rows], schedule.weight[:active, s])
        total[:active] += value
        change, now = [grads[name] for name in names], list(weights.values())
        if plan.weight_decay:
            torch._foreach_add_(change, now, alpha=plan.weight_decay)
        if plan.prox and plan.prox[1]:
            torch._foreach_add_(change, [w - a for w, a in zip(now, anchor, strict=True)], alpha=plan.prox[1])
        if momentum:
            kept = [buffer[:active] for buffer in momentum]
            torch._foreach_mul_(kept, plan.momentum)
            torch._foreach_add_(kept, change)
            change = kept
        rate = schedule.lr[:active, s]
        torch._foreach_sub_(now, [c * rate.view(-1, *[1] * (c.ndim - 1)) for c in change])
    steps = torch.from_numpy(np.maximum(schedule.steps, 1)).to(total.device)
    return np.asarray((total / steps).cpu().numpy())


def _steps(rows: NDArray[np.int64], plan: LocalSGD, draw: np.random.Generator) -> list[tuple[NDArray[np.int64], float]]:
    """Return one client's minibatches, as rows of the federation, with their learning rates."""
    found = []
    for epoch in range(plan.epochs):
        order = torch.from_numpy(draw.permutation(len(rows)))
        found += [(rows[batch.numpy()], plan.lr(epoch)) for batch in batches(order, plan.batch_size, join_single=False)]
    return found


def _padded(plans: list[list[tuple[NDArray[np.int64], float]]], plan: LocalSGD, device: torch.device) -> _Schedule:
    steps = np.asarray([len(steps) for steps in plans])
    shape = (len(plans), int(steps.max(initial=0)), max((len(b) for p in plans for b, _ in p), default=0))
    rows, weight, lr = np.zeros(shape, np.int64), np.zeros(shape, np.float32), np.zeros(shape[:2], np.float32)
    for place, client in enumerate(plans):
        for s, (batch, rate) in enumerate(client):
            rows[place, s, : len(batch)] = batch
            weight[place, s, : len(batch)] = 1
            lr[place, s] = rate
    on = [torch.from_numpy(array).to(device) for array in (rows, weight, lr)]
    return _Schedule(on[0], on[1], on[2], steps)
