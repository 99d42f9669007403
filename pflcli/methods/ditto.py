"""Ditto: beside the global model of FedAvg, a personal model of every client that stays near it.

Li et al. (2021), https://arxiv.org/abs/2012.04221, Algorithm 1. Client i minimises F_i(v) + lambda/2 |v - w|^2 over its
personal model v: in a round the cohort is sent w^t, and each of it takes personal steps v <- v - lr (grad F_i(v) +
lambda (v - w^t)), towards the model that it was sent and not the one that it trains, then trains w^t as in FedAvg.
Personal models begin at the common initialisation and stay as they are in rounds that do without the client.

A client that never took part has no personal model. When it personalizes it starts from the last global model and takes
`newcomer_epochs` of the same personal steps. All answers come from training samples alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from pflcli.fl.params import Mean
from pflcli.fl.run import Predictor, Run

KIND = "server"
NEEDS = ()
PERSONAL = "personal"
PAPER = "Ditto"
YEAR = 2021

State = dict[str, Any]


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    lam: Annotated[float, Ge(0)] = 1.0
    """lambda, the pull of the global model; 0 is training alone. The authors' code chooses among 0.1, 1 and 2"""
    personal_epochs: Annotated[int, Ge(0)] = 0
    """local epochs a round of the personal model; 0 takes those of the training settings"""
    lr: Annotated[float, Ge(0)] = 0.0
    """learning rate of the personal model; 0 takes that of the round; steps are stable while lr lambda < 2"""
    newcomer_epochs: Annotated[int, Ge(0)] = 5
    """local epochs, when they personalize, of clients that never took part; 0 leaves them the global model"""


def setup(run: Run) -> State:
    """Return the common initial model, for the server and for every client."""
    return {"global": run.start(), "personal": run.table(run.start())}


def train_round(run: Run, state: State, t: int) -> State:
    """Move the cohort's personal models towards the global one, and that as FedAvg does."""
    cohort, start, personal = run.cohort(t), state["global"], state["personal"]
    run.send("down", start, copies=len(cohort))
    rate = run.cfg.lr or run.settings.lr_at(t)
    epochs, near = run.cfg.personal_epochs or run.settings.epochs, (start, run.cfg.lam)
    for part in run.local_sgd(cohort, personal, t=t, name="personal", epochs=epochs, lr=rate, prox=near):
        personal[part.clients] = part.params
    mean = Mean()
    for part in run.local_sgd(cohort, start, t=t):
        mean.add(part.params, part.weights)
    run.send("up", start, copies=len(cohort))
    return {"global": mean.value(), "personal": personal}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Answer with each client's personal model."""
    start, personal = state["global"], state["personal"]
    rate = run.cfg.lr or run.settings.lr_at(run.settings.rounds - 1)
    new, epochs, near = personal.unwritten(clients), run.cfg.newcomer_epochs, (start, run.cfg.lam)
    trained = run.local_sgd(new, start, t="newcomer", name="personal", epochs=epochs, lr=rate, prox=near)
    return run.predictor(clients, personal.replaced(clients, trained))
