"""FedProx: FedAvg whose clients are held near the global model by a proximal term.

Li et al. (2020), https://arxiv.org/abs/1812.06127, Algorithm 2. Client i minimizes F_i(w) + mu/2 |w - w^t|^2: mu (w -
w^t) is added to each gradient. Every client trains for the same number of epochs; in the paper some train for fewer.
Cohorts, weights and the optimizers of the server are those of FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from pflcli.method import Predictor, Run
from pflcli.methods.parts import server_optimizer
from pflcli.methods.parts.server_optimizer import ServerOptions

KIND = "server"
NEEDS = ()
PAPER = "FedProx"
YEAR = 2020
TASKS = ("any",)
GRID = {"mu": (0.001, 0.01, 0.1, 1.0)}

State = dict[str, Any]


@dataclass(frozen=True)
class Config(ServerOptions):
    """Options of the method, beside those of the server."""

    mu: Annotated[float, Ge(0)] = 0.01
    """add the proximal term with this weight; 0 is FedAvg; the paper tries 0.001 to 1"""


def setup(run: Run) -> State:
    """Return the common initial model."""
    return {"global": run.initial_model()}


def train_round(run: Run, state: State, t: int) -> State:
    """Train a cohort near the global model that it was sent, step towards the mean of what comes back."""
    cohort = run.cohort(t)
    start = run.download(state["global"], cohort)
    trained = run.local_sgd(cohort, start, t=t, prox=(start, run.cfg.mu))
    return server_optimizer.step(run, state, run.average(trained, start))


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with the global model for every client."""
    return run.predictor(clients, state["global"])
