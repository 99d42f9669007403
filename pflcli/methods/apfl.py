"""APFL: each client predicts with a weighted mean of its local model and the global model.

Deng et al. (2020), https://arxiv.org/abs/2003.13461, Algorithm 1. Client i has a local model v and a copy w of the
global model; its personal model is alpha v + (1 - alpha) w. As in the paper, this is a mixture of weights (other
libraries mix outputs).

In a round, each minibatch moves both models: w by grad F(w), and v by alpha grad F(alpha v + (1 - alpha) w). Only w is
uploaded, and averaged as in FedAvg. With `adaptive`, a client first takes one step of gradient descent on alpha over
all its training samples, and clips alpha to [0, 1]. The running statistics of BatchNorm are those of v.

A client predicts with the mixture of its local model and the last global model. Local models start from the common
initial model. A client that never took part trains a local model from the last global model when it personalizes.
Predictions use training samples only.

`--clip-gradients` bounds the gradients of the two models separately. No option of the optimizer applies to alpha.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Le
from numpy.typing import NDArray
from torch import Tensor

from pflcli.method import Params, Pass, Predictor, Run, Stacked, StackedBatch, StackedNetwork, parameters

KIND = "server"
NEEDS = ()
PERSONAL_MODELS = "local"
KEEPS = ("alpha",)
PAPER = "APFL"
YEAR = 2020
TASKS = ("any",)
GRID = {"alpha": (0.25, 0.5, 0.75)}

State = dict[str, Any]

_LOCAL = "local:"


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    alpha: Annotated[float, Ge(0), Le(1)] = 0.5
    """give the local model this share of the mixture: 0 is FedAvg, 1 is training alone (the authors' code: 0.5)"""
    adaptive: bool = False
    """let each client learn its share, starting from alpha; the authors' code does not by default"""
    alpha_lr: Annotated[float, Ge(0)] = 0.0
    """learn alpha with this learning rate; 0 uses that of the round"""
    newcomer_epochs: Annotated[int, Ge(0)] = 5
    """train clients that never took part for this many local epochs when they personalize; 0 gives them the
    global model"""


def setup(run: Run) -> State:
    """Return the common initial model, for the server and for every client, and everyone's alpha."""
    start = run.initial_model()
    alpha = next(iter(start.values())).new_full((len(run.clients),), run.cfg.alpha)
    return {"global": start, "local": run.table(start), "alpha": alpha}


def train_round(run: Run, state: State, t: int) -> State:
    """Train the local and the global model of a cohort together, average the latter."""
    cohort, local, alpha = run.cohort(t), state["local"], state["alpha"].clone()
    start = run.download(state["global"], cohort)
    mean = run.averaging(start)
    for ids in run.client_chunks(cohort):
        if run.cfg.adaptive:
            alpha[ids] = _adapt_alpha(run, ids, local[ids], start, alpha[ids], t)
        both = {**parameters.repeat(start, len(ids)), **_add_prefix(local[ids])}
        plan: dict[str, Any] = {"pass_rule": _passes, "passes": 2, "clips_apart": _LOCAL}
        for part in run.local_sgd(ids, both, t=t, own={"alpha": alpha[ids]}, **plan):
            local[part.clients] = {name: part.params[_LOCAL + name] for name in start}
            mean.add(part.params, part.weights, part.clients)
    return {"global": mean.value(), "local": local, "alpha": alpha}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with each client's local model, mixed into the global one."""
    start, local, alpha = state["global"], state["local"], state["alpha"]
    own = run.adapt(
        local,
        clients,
        {**start, **_add_prefix(start)},
        epochs=run.cfg.newcomer_epochs,
        prefix=_LOCAL,
        pass_rule=_passes,
        passes=2,
        clips_apart=_LOCAL,
        own={"alpha": alpha[clients]},
    )
    predictor = run.predictor(clients, _mix(run.engine.parameters, alpha[clients], own, start))
    chosen = {"alpha": alpha[clients].double().cpu().numpy()} if run.cfg.adaptive else {}
    return replace(predictor, tuned=chosen)


def _add_prefix(local: Stacked) -> Stacked:
    return {_LOCAL + name: value for name, value in local.items()}


def _mix(names: Collection[str], alpha: Tensor, local: Stacked, shared: Params | Stacked) -> Stacked:
    """Return alpha v + (1 - alpha) w of the parameters ``names``, with the buffers of v."""
    share = {n: alpha.view(-1, *[1] * (v.ndim - 1)) for n, v in local.items() if n in names}
    return {n: torch.lerp(shared[n], v, share[n]) if n in share else v for n, v in local.items()}


def _passes(network: StackedNetwork, params: Stacked, batch: StackedBatch) -> list[Pass]:
    """Return the pass of F(w), which moves w, and that of F(alpha v + (1 - alpha) w), which moves v."""
    local = parameters.unprefixed(params, _LOCAL)
    shared, alpha = {name: params[name] for name in local}, batch.own["alpha"]
    mixed = _mix(network.parameters, alpha, local, shared)
    return [Pass(shared, batch), Pass(mixed, batch, scale=alpha, moves=_LOCAL)]


def _slope(network: StackedNetwork, params: Stacked, batch: StackedBatch) -> tuple[Tensor, Stacked]:
    """Return F(alpha v + (1 - alpha) w), and its derivative by alpha."""
    alpha, shared = params["alpha"], parameters.repeat(batch.shared, len(batch.x))
    losses, grads = network.gradient(_mix(network.parameters, alpha, batch.own, shared), batch, network.parameters)
    slope = torch.zeros_like(alpha)
    for name, value in grads.items():
        slope += (value * (batch.own[name] - shared[name])).flatten(1).sum(dim=1)
    return losses, {"alpha": slope}


def _adapt_alpha(run: Run, ids: NDArray[np.int64], local: Stacked, shared: Params, alpha: Tensor, t: int) -> Tensor:
    """Return alpha (m,) after one step over all training samples of each client."""
    largest, rate = int(run.federation.sizes("train").max()), run.cfg.alpha_lr or run.settings.lr_at(t)
    plan: dict[str, Any] = {"name": "alpha", "epochs": 1, "lr": rate, "batch_size": largest}
    parts = run.descend(ids, {"alpha": alpha}, t=t, gradient=_slope, own=local, shared=shared, **plan)
    return torch.cat([part.params["alpha"] for part in parts]).clamp(0, 1)
