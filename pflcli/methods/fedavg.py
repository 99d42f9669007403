"""FedAvg: one global model, the weighted mean of locally trained models.

McMahan et al. (2017), https://arxiv.org/abs/1602.05629, Algorithm 1. Weights are numbers of training samples,
normalized over the clients that take part. Buffers are averaged like parameters. If FedAvg with the same settings made
the backbone, its model is used and no round is run.

With another `server` it is FedOpt (Reddi et al., 2021, https://arxiv.org/abs/2003.00295): FedAvgM, FedAdagrad, FedAdam
or FedYogi. Their equations are in ``parts/server_optimizer.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.method import Predictor, Run
from pflcli.methods.parts import server_optimizer
from pflcli.methods.parts.server_optimizer import ServerOptions

KIND = "server"
NEEDS = ()
PAPER = "FedAvg"
YEAR = 2017
TASKS = ("any",)

State = dict[str, Any]


@dataclass(frozen=True)
class Config(ServerOptions):
    """Options of the method: those of the server alone."""


def setup(run: Run) -> State:
    """Return the common initial model."""
    return {"global": run.initial_model()}


def train_round(run: Run, state: State, t: int) -> State:
    """Send the global model to a cohort, train locally, step towards the mean of what comes back."""
    cohort = run.cohort(t)
    downloaded = run.download(state["global"], cohort)
    return server_optimizer.step(run, state, run.average(run.local_sgd(cohort, downloaded, t=t), downloaded))


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with the global model for every client."""
    return run.predictor(clients, state["global"])
