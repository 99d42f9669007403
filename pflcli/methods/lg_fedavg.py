"""LG-FedAvg: a personal body under a common head, the mirror image of FedPer.

Liang et al. (2020), https://arxiv.org/abs/2001.01523, Algorithm 1. Clients learn their own representation. In a round,
a client trains its own body together with the head that it downloads, and uploads the head. The server averages the
heads, weighted by samples. The authors start from a model trained by FedAvg; `warmup` does so, and bodies then start
from that of its last round. The head is the last linear layer of the model.

A client predicts with its own body from its last round and the last global head. A client that never took part trains a
body from the common start, under this head, which stays fixed, when it personalizes. Predictions use training samples
only.
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
PERSONAL_MODELS = "bodies"
PAPER = "LG-FedAvg"
YEAR = 2020
TASKS = ("any",)

State = dict[str, Any]


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    warmup: Annotated[int, Ge(0)] = 0
    """run this many rounds of FedAvg first, which send the whole model"""
    newcomer_epochs: Annotated[int, Ge(0)] = 5
    """train the bodies of clients that never took part after the warm-up for this many local epochs when they
    personalize"""


def setup(run: Run) -> State:
    """Return the common initial body and head."""
    start = run.initial_model()
    state: State = {"body": parameters.part(start, "body."), "head": parameters.part(start, "head.")}
    return state if run.cfg.warmup else {**state, "bodies": run.table(state["body"])}


def train_round(run: Run, state: State, t: int) -> State:
    """Train bodies and heads of a cohort together; average the heads, in the warm-up the bodies too."""
    cohort = run.cohort(t)
    if t < run.cfg.warmup:
        start = run.download({**state["body"], **state["head"]}, cohort)
        model = run.average(run.local_sgd(cohort, start, t=t), start)
        return {"body": parameters.part(model, "body."), "head": parameters.part(model, "head.")}
    bodies = state["bodies"] if "bodies" in state else run.table(state["body"])
    head = run.download(state["head"], cohort)
    mean = run.averaging(head)
    for ids in run.client_chunks(cohort):
        for part in run.local_sgd(ids, {**bodies[ids], **parameters.repeat(head, len(ids))}, t=t):
            bodies[part.clients] = part.params
            mean.add(part.params, part.weights, part.clients)
    return {"body": state["body"], "head": mean.value(), "bodies": bodies}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with each client's body under the global head."""
    body, head = state["body"], state["head"]
    if "bodies" not in state:
        return run.predictor(clients, {**body, **head})
    start, epochs = {**body, **head}, run.cfg.newcomer_epochs
    own_bodies = run.adapt(state["bodies"], clients, start, epochs=epochs, trainable="body.")
    return run.predictor(clients, {**own_bodies, **parameters.repeat(head, len(clients))})
