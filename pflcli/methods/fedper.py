"""FedPer: a common body and a personal head that never leaves its client.

Arivazhagan et al. (2019), https://arxiv.org/abs/1912.00818, Algorithms 1 and 2. In a round, the cohort downloads the
body, trains body and head together, and uploads the body. The server takes the mean of the bodies, weighted by samples.
Only the bytes of the body are sent. The personalization layers are the head of the model, its last linear layer.

A client predicts with its own head from its last round and the last global body. Heads start from the common initial
model. A client that never took part trains its head on the last body, which stays fixed, when it personalizes.
Predictions use training samples only.
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
PAPER = "FedPer"
YEAR = 2019
TASKS = ("any",)

State = dict[str, Any]


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    newcomer_epochs: Annotated[int, Ge(0)] = 5
    """train the heads of clients that never took part for this many local epochs when they personalize; 0 keeps
    the initial head"""


def setup(run: Run) -> State:
    """Return the common initial body, and heads."""
    start = run.initial_model()
    return {"body": parameters.part(start, "body."), "heads": run.table(parameters.part(start, "head."))}


def train_round(run: Run, state: State, t: int) -> State:
    """Train body and head of each client of a cohort together, average the bodies."""
    cohort, heads = run.cohort(t), state["heads"]
    body = run.download(state["body"], cohort)
    mean = run.averaging(body)
    for part in run.local_sgd(cohort, {**parameters.repeat(body, len(cohort)), **heads[cohort]}, t=t):
        heads[part.clients] = part.params
        mean.add(part.params, part.weights, part.clients)
    return {"body": mean.value(), "heads": heads}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with each client's head on the global body."""
    body, heads = state["body"], state["heads"]
    start, epochs = {**body, **heads.default}, run.cfg.newcomer_epochs
    own_heads = run.adapt(heads, clients, start, epochs=epochs, trainable="head.")
    return run.predictor(clients, {**parameters.repeat(body, len(clients)), **own_heads})
