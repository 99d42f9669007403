"""FedRep: in each round, clients train their own head on the common body, then the body under that head.

Collins et al. (2021), https://arxiv.org/abs/2102.07078, Algorithm 1. In a round, the cohort downloads the body. Each
client trains its head for `head_epochs` with the body fixed, then the body for `body_epochs` with the head fixed, and
uploads the body. Only the bytes of the body are sent. BatchNorm normalizes by the batch in both phases; the statistics
of the first phase are discarded.

The authors' code takes 10 epochs for the head and 1 or 5 for the body, with a learning rate of 0.01 and momentum 0.5.
With ten times this rate, the default here, a body diverges under heads that fit so well, and fewer epochs are better.
The defaults are 2 and 1, as in FederatedScope (https://arxiv.org/abs/2204.05011).

A client predicts with its own head and the last global body. A head that was trained some rounds ago does not fit this
body. Therefore every client trains its head for `final_epochs` at the end, as in the last round of the authors' code,
in which all clients take part with 10 epochs. This only needs the last body, which clients of every method receive, and
sends nothing back; no bytes are counted. Heads start from the common initial model. A client that never took part first
trains its head on the last body for `head_epochs`. Predictions use training samples only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from pflcli.method import Predictor, Run, parameters

KIND = "server"
NEEDS = ()
DIVIDES = True
PERSONAL_MODELS = "heads"
PAPER = "FedRep"
YEAR = 2021
TASKS = ("any",)
GRID = {"head_epochs": (1, 2, 5, 10)}

State = dict[str, Any]


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    head_epochs: Annotated[int, Ge(0)] = 2
    """train the head for this many local epochs per round, and that of a client that never took part when it
    personalizes"""
    body_epochs: Annotated[int, Ge(0)] = 0
    """train the body for this many local epochs per round; 0 uses --epochs or --steps"""
    final_epochs: Annotated[int, Ge(0)] = 10
    """train each client's head on the last body for this many local epochs when it personalizes; 0 does not (the
    authors' code: 10)"""


def setup(run: Run) -> State:
    """Return the common initial body, and heads."""
    start = run.initial_model()
    return {"body": parameters.part(start, "body."), "heads": run.table(parameters.part(start, "head."))}


def train_round(run: Run, state: State, t: int) -> State:
    """Train the heads of a cohort, then its bodies, and average the bodies."""
    cohort, heads = run.cohort(t), state["heads"]
    body = run.download(state["body"], cohort)
    bodies, epochs = parameters.repeat(body, len(cohort)), run.cfg.head_epochs
    start = {**bodies, **heads[cohort]}
    for part in run.local_sgd(cohort, start, t=t, name="head", epochs=epochs, trainable="head."):
        heads[part.clients] = part.params
    start, epochs = {**bodies, **heads[cohort]}, run.cfg.body_epochs or None
    trained = run.local_sgd(cohort, start, t=t, name="body", epochs=epochs, trainable="body.")
    return {"body": run.average(trained, body), "heads": heads}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with each client's head on the global body."""
    body, cfg = state["body"], run.cfg
    heads, plan = state["heads"], dict[str, Any](name="head", trainable="head.")
    own_heads = run.adapt(heads, clients, {**body, **heads.default}, epochs=cfg.head_epochs, **plan)
    models = {**parameters.repeat(body, len(clients)), **own_heads}
    if not cfg.final_epochs:
        return run.predictor(clients, models)
    trained = run.local_sgd(clients, models, t="final", epochs=cfg.final_epochs, lr=run.last_lr, **plan)
    return run.predictor(clients, trained)
