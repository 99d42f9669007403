"""FedALA: each client learns, for every parameter, how much of the global model to take before it trains.

Zhang et al. (2023), "FedALA: Adaptive Local Aggregation for Personalized Federated Learning", AAAI,
https://arxiv.org/abs/2212.01197, Algorithm 1.

In a round, a client downloads the global model Theta. In the upper layers it starts from Theta_i + (Theta - Theta_i) *
W_i (Eq. 4), where Theta_i is its local model after its last round; the lower layers are the global ones. W_i has a
value in [0, 1] for each parameter and starts at ones. It is learned by projected gradient descent on the client's
training loss at that mixture (Eq. 5). Then the mixture is trained and uploaded, and the server averages as in FedAvg. A
round sends as many bytes as FedAvg. Buffers of the upper layers are the global ones.

A client predicts with the mixture of its local model and the last global model, after another `weight_epochs` on W_i,
as Algorithm 1 returns it. With `final_epochs` it also trains the mixture. A client that never took part predicts with
the global model. Predictions use training samples only. `--optimizer`, `--momentum`, `--weight-decay` and
`--clip-gradients` apply to models, not to W_i.

Deviations from the paper: W_i is learned on all training samples of the client instead of a random 80 %. The first
time, it is learned for `first_epochs` instead of until the loss settles; later for `weight_epochs`, 1 as in the paper.
In its first round a client has no local model and trains the global one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Gt
from numpy.typing import NDArray
from torch import Tensor

from pflcli.method import ModelTable, Predictor, Run, Stacked, StackedBatch, StackedNetwork, TrainedClients, parameters

KIND = "server"
NEEDS = ()
PERSONAL_MODELS = "local"
PAPER = "FedALA"
YEAR = 2023
TASKS = ("any",)
GRID = {"eta": (0.1, 1.0)}

State = dict[str, Any]


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    upper: Annotated[int, Gt(0)] = 1
    """mix this many layers, counted from the last (the paper's p); the others are those of the global model"""
    eta: Annotated[float, Ge(0)] = 1.0
    """learn the mixing weights with this learning rate; 0 keeps them at one, which is FedAvg"""
    weight_epochs: Annotated[int, Ge(0)] = 1
    """train the mixing weights for this many local epochs per round"""
    first_epochs: Annotated[int, Ge(0)] = 10
    """train the mixing weights for this many local epochs when a client first learns them"""
    final_epochs: Annotated[int, Ge(0)] = 0
    """train the last mixture for this many local epochs when clients personalize; the paper does not"""
    newcomer_epochs: Annotated[int, Ge(0)] = 5
    """train clients that never took part for this many local epochs when they personalize; 0 gives them the
    global model"""


def setup(run: Run) -> State:
    """Return the common initial model, and for every client its upper layers and mixing weights."""
    start = run.initial_model()
    upper = {name: start[name] for name in _mixed_names(run)}
    ones = {name: torch.ones_like(value) for name, value in upper.items()}
    return {"global": start, "local": run.table(upper), "weights": run.table(ones)}


def train_round(run: Run, state: State, t: int) -> State:
    """Let a cohort mix the global model into its own and train the mixture; average what comes back."""
    cohort, local, weights = run.cohort(t), state["local"], state["weights"]
    start = run.download(state["global"], cohort)
    state = {**state, "global": start}
    mean = run.averaging(start)
    for ids in run.client_chunks(cohort):
        learned = _learn_weights(run, state, ids, t)
        known = np.setdiff1d(ids, local.unwritten(ids))
        weights[known] = parameters.take(learned, np.searchsorted(ids, known))
        for part in run.local_sgd(ids, _mix(state, ids, learned), t=t):
            local[part.clients] = part.params
            mean.add(part.params, part.weights, part.clients)
    return {"global": mean.value(), "local": local, "weights": weights}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with the mixture of each client's model and the global one."""
    local, cfg = state["local"], run.cfg
    models = _mix(state, clients, _learn_weights(run, state, clients, "personalize"))
    position, newcomers = {int(client): row for row, client in enumerate(clients)}, local.unwritten(clients)
    for name, ids, epochs in (
        ("newcomer", newcomers, cfg.newcomer_epochs),
        ("final", np.setdiff1d(clients, newcomers), cfg.final_epochs),
    ):
        rows = [position[int(client)] for client in ids]
        initial = {key: value[rows] for key, value in models.items()}
        for part in run.local_sgd(ids, initial, t=name, epochs=epochs, lr=run.last_lr):
            rows = [position[int(client)] for client in part.clients]
            parameters.write_rows(models, np.asarray(rows), part.params)
    return run.predictor(clients, models)


def _mixed_names(run: Run) -> list[str]:
    """Return the parameters of the upper layers."""
    layers = parameters.upper({name: run.init[name] for name in run.engine.parameters}, run.cfg.upper)
    return [name for name in run.engine.parameters if name.startswith(layers)]


def _learn_weights(run: Run, state: State, ids: NDArray[np.int64], t: int | str) -> Stacked:
    """Return the clients' mixing weights (m, ...) after they have learned from the global model as it is now."""
    cfg, start = run.cfg, state["global"]
    table: ModelTable = state["weights"]
    trained_before = np.setdiff1d(ids, state["local"].unwritten(ids))
    beginners = table.unwritten(trained_before)
    learned: list[TrainedClients] = []
    for learners, epochs in (
        (beginners, cfg.first_epochs),
        (np.setdiff1d(trained_before, beginners), cfg.weight_epochs),
    ):
        learned += run.descend(
            learners,
            table[learners],
            t=t,
            name="weights",
            epochs=epochs,
            lr=cfg.eta,
            gradient=_gradients,
            own=state["local"][learners],
            shared=start,
            bounds=(0.0, 1.0),
            frozen_norm=True,
        )
    return table.overlay(ids, learned)


def _mix(state: State, ids: NDArray[np.int64], weights: Stacked) -> Stacked:
    """Return the clients' models (m, ...): the global one, with upper layers mixed."""
    start, local = state["global"], state["local"]
    new = torch.from_numpy(np.isin(ids, local.unwritten(ids)))
    models = {name: value.clone() for name, value in parameters.repeat(start, len(ids)).items()}
    for name, own in local[ids].items():
        mixed = own + (start[name] - own) * weights[name]
        stays = new.to(own.device).view(-1, *[1] * (own.ndim - 1))
        # Where all weights are one the sum would differ from the global model by its rounding.
        models[name] = torch.where(stays | (weights[name] == 1), models[name], mixed)
    return models


def _gradients(network: StackedNetwork, params: Stacked, batch: StackedBatch) -> tuple[Tensor, Stacked]:
    """Return the loss of mixtures of the local (``own``) and the global model, and its gradient by the weights."""
    shared = parameters.repeat(batch.shared, len(batch.x))
    apart = {name: shared[name] - own for name, own in batch.own.items()}
    mixed = {name: torch.addcmul(own, apart[name], params[name]) for name, own in batch.own.items()}
    losses, grads = network.gradient({**shared, **mixed}, batch)
    return losses, {name: value.mul_(apart[name]) for name, value in grads.items()}
