"""SCAFFOLD: FedAvg whose clients correct the drift of their own steps by control variates.

Karimireddy et al. (2020), https://arxiv.org/abs/1910.06378, Algorithm 1, option II. Client i steps along grad F(y) -
c_i + c from the global model x, and after K steps that led to y its control variate becomes c_i - c + (x - y) / (K lr),
the mean of the gradients that it met. The server moves x by `server_lr` times the mean of y - x, and c by the mean
change of the control variates of all clients that can take part, those that did not change included. Means are weighted
by samples, as in FedAvg; with equal clients they are the paper's. Model and control variate travel both ways, so a
round sends twice what FedAvg sends. Local steps have no momentum, for which the mean of the gradients could not be told
from y. With weight decay c_i holds the decay as well as the gradient, as (x - y) / (K lr) cannot tell them apart.

It is a global model: control variates begin at zero and change no answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Gt
from numpy.typing import NDArray
from torch import Tensor

from pflcli import parameters
from pflcli.engine.gradients import StackedBatch, StackedNetwork, gradient
from pflcli.engine.local_sgd import steps_per_epoch
from pflcli.fl.run import Predictor, Run
from pflcli.parameters import Params, Stacked

KIND = "server"
NEEDS = ()
PAPER = "SCAFFOLD"
YEAR = 2020

State = dict[str, Any]

_CHANGE = "change:"
"""Before the names of a change of a control variate in an upload."""


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    server_lr: Annotated[float, Gt(0)] = 1.0
    """move the server's model this far towards the mean of the clients' models; the paper takes 1"""


def setup(run: Run) -> State:
    """Return the common initial model, and control variates of zero for the server and every client."""
    start = run.initial_model()
    zero = {name: torch.zeros_like(start[name]) for name in run.engine.parameters}
    return {"global": start, "control": zero, "controls": run.table(zero)}


def train_round(run: Run, state: State, t: int) -> State:
    """Take corrected steps on each client of a cohort, average the models and the control variates."""
    cohort, controls = run.cohort(t), state["controls"]
    start, control = run.download(state["global"], cohort), run.download(state["control"], cohort)
    sizes = run.federation.sizes("train")
    count = _steps(run, sizes)
    # Model and change of the control variate are one upload: an upload step or a bound covers both together.
    mean = run.averaging({**start, **_changes(controls.default)})
    for ids in run.client_chunks(cohort, 3 * parameters.size(start)):
        own_controls = controls[ids]
        drift = {name: value - own_controls[name] for name, value in control.items()}
        initial = parameters.repeat(start, len(ids))
        (part,) = run.local_sgd(ids, initial, t=t, momentum=0.0, gradient=_corrected, own=drift)
        scale = 1 / (count[ids] * run.settings.lr_at(t))
        gradients = {name: (start[name] - part.params[name]) * _broadcast(scale, drift[name]) for name in control}
        controls[ids] = {name: value - drift[name] for name, value in gradients.items()}
        # The change of c_i is the mean of the gradients minus c.
        change = _changes({name: value - control[name] for name, value in gradients.items()})
        mean.add({**part.params, **change}, part.weights, part.clients)
    value, share = mean.value(), run.share_of_samples(cohort)
    model, change = {name: value[name] for name in start}, parameters.unprefixed(value, _CHANGE)
    for name in run.engine.parameters if run.cfg.server_lr != 1 else ():
        model[name] = start[name] + run.cfg.server_lr * (model[name] - start[name])
    return {"global": model, "control": {n: v + share * change[n] for n, v in control.items()}, "controls": controls}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Answer with the global model for every client."""
    return run.predictor(clients, state["global"])


def _changes(values: Stacked | Params) -> dict[str, Tensor]:
    """Return changes of control variates by the names under which they are uploaded."""
    return {_CHANGE + name: value for name, value in values.items()}


def _steps(run: Run, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many local steps a round of each client (m,) has, by its training samples."""
    if run.settings.steps:
        return np.full(len(sizes), run.settings.steps)
    each = steps_per_epoch(sizes, run.settings.batch_size, join_single=run.engine.joins_single)
    return np.asarray(run.settings.epochs * each)


def _broadcast(values: NDArray[np.float64], like: Tensor) -> Tensor:
    """Return values (m,) with as many axes as ``like`` (m, ...)."""
    return torch.from_numpy(values).to(like).view(-1, *[1] * (like.ndim - 1))


def _corrected(network: StackedNetwork, params: Stacked, batch: StackedBatch) -> tuple[Tensor, Stacked]:
    """Return the losses, and their gradients plus the clients' corrections c - c_i."""
    losses, grads = gradient(network, params, batch)
    return losses, {name: value.add_(batch.own[name]) for name, value in grads.items()}
