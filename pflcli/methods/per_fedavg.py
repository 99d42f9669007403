"""Per-FedAvg: trains a model from which each client reaches its own by one gradient step.

Fallah et al. (2020), https://arxiv.org/abs/2002.07948, Algorithm 1, by first-order MAML (Per-FedAvg (FO) in the paper).
A local step draws two minibatches, takes a step with rate alpha on the first, and moves the model by the gradient of
the second at the point that it reached: w <- w - lr grad F(w - alpha grad F(w; D); D'). The term with the Hessian is
left out. The two minibatches are the even and the odd samples of one of twice the size, so that an epoch has half as
many steps as in FedAvg. Fewer than four samples serve as both minibatches. Models are averaged as in FedAvg. Running
statistics of BatchNorm are updated twice per step, once by each minibatch.

When it personalizes, a client takes steps with rate alpha from the last global model for `epochs` epochs, whether or
not it ever took part. The paper takes a single step. `--optimizer`, `--momentum`, `--weight-decay` and
`--clip-gradients` apply to the steps of w, not to those with rate alpha.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray

from pflcli.method import Params, Pass, Predictor, Run, Stacked, StackedBatch, StackedNetwork, repeat

KIND = "server"
NEEDS = ()
ADAPTS = True
PAPER = "Per-FedAvg"
YEAR = 2020
TASKS = ("any",)
GRID = {"alpha": (0.003, 0.01, 0.03)}

State = dict[str, Params]


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    alpha: Annotated[float, Ge(0)] = 0.01
    """use this learning rate for the inner step and for fine-tuning (the paper's 0.01)"""
    epochs: Annotated[int, Ge(0)] = 5
    """fine-tune for this many local epochs, as `fedavg-plus` does; the paper takes one step"""


def setup(run: Run) -> State:
    """Return the common initial model."""
    return {"global": run.initial_model()}


def train_round(run: Run, state: State, t: int) -> State:
    """Take meta-steps on each client of a cohort, average what comes back."""
    cohort = run.cohort(t)
    start = run.download(state["global"], cohort)
    meta, size = partial(_passes, alpha=run.cfg.alpha), 2 * run.settings.batch_size
    trained = run.local_sgd(cohort, repeat(start, len(cohort)), t=t, batch_size=size, pass_rule=meta)
    return {"global": run.average(trained, start)}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Fine-tune the global model on each client and predict with the result."""
    tuned = run.descend(
        clients,
        state["global"],
        t="fine-tune",
        epochs=run.cfg.epochs,
        lr=run.cfg.alpha,
    )
    return run.predictor(clients, tuned)


def _passes(network: StackedNetwork, params: Stacked, batch: StackedBatch, *, alpha: float) -> list[Pass]:
    """Return the pass on one half of a batch after a step on the other; its gradient moves the models (first order)."""
    inner, outer = _halves(batch)
    moved = {**params, **{name: params[name].clone() for name in network.trained}}
    network.descend(moved, inner, rate=alpha)
    return [Pass(moved, outer)]


def _halves(batch: StackedBatch) -> tuple[StackedBatch, StackedBatch]:
    """Return the even and the odd samples of each client's batch, or all of it twice if it has fewer than four."""
    few, width = ((batch.weight > 0).sum(dim=1) < 4)[:, None], batch.weight.shape[1]  # (a, 1)
    if few.all():
        return batch, batch
    if not few.any():
        return _every_second(batch, 0), _every_second(batch, 1)
    place = torch.arange(max((width + 1) // 2, min(width, 3)), device=few.device)
    halves = []
    for first in (0, 1):
        chosen = torch.where(few, place, first + 2 * place)
        rows, chosen = torch.arange(len(few), device=few.device)[:, None], chosen.clamp(max=width - 1)
        weight = batch.weight[rows, chosen] * (torch.where(few, place, first + 2 * place) < width)
        weight = weight / weight.sum(dim=1, keepdim=True)
        halves.append(replace(batch, x=batch.x[rows, chosen], y=batch.y[rows, chosen], weight=weight))
    return halves[0], halves[1]


def _every_second(batch: StackedBatch, first: int) -> StackedBatch:
    """Return the even samples of each client's batch, or the odd ones if ``first`` is 1."""
    weight = batch.weight[:, first::2]
    weight = weight / weight.sum(dim=1, keepdim=True)
    return replace(batch, x=batch.x[:, first::2], y=batch.y[:, first::2], weight=weight)
