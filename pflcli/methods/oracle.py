"""Oracle: FedAvg within the true clusters of clients, which are unknown in practice.

An upper bound for methods that look for clusters, as in PANM (Li & Wu, 2022), https://arxiv.org/abs/2203.12285. It
needs a partition with known clusters, such as one of scheme `clusters`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.method import Predictor, Run, parameters
from pflcli.methods.parts import clusters

KIND = "server"
NEEDS = ()
PERSONAL_MODELS = "cluster"
SENDS_MORE = "models, of which the server takes a mean per cluster"
PAPER = "Oracle"
YEAR = 2022
TASKS = ("any",)
REFERENCE = True
RECORDS = ("cluster",)

State = dict[str, Any]


@dataclass(frozen=True)
class Config:
    """No options beyond the training settings."""


def setup(run: Run) -> State:
    """Return the common initial model for every cluster; raises InputError if they are not known."""
    cluster = run.federation.true_clusters()
    models = parameters.stack([run.initial_model()] * (int(cluster.max()) + 1))
    return {"models": models, "cluster": torch.from_numpy(cluster)}


def train_round(run: Run, state: State, t: int) -> State:
    """Send each client of a cohort the model of its cluster, train locally, average within clusters."""
    cohort = run.cohort(t)
    run.download(run.init, cohort)
    models, _ = clusters.train_and_average(run, state["models"], cohort, state["cluster"].cpu().numpy(), t)
    return {**state, "models": models}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with the model of each client's cluster."""
    return run.predictor(clients, clusters.select_models(state["models"], state["cluster"].cpu().numpy()[clients]))
