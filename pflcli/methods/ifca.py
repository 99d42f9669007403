"""IFCA: k models; each client trains the one with the lowest loss on its samples.

Ghosh et al. (2020), https://arxiv.org/abs/2006.04088, Algorithm 1 with model averaging. The server sends all k models.
A client takes the one with the lowest loss on its training samples, trains it and uploads it. The server averages the
uploads of each model. A model that no client takes does not change. The models start from different random weights: if
they were equal, all clients would always take the first. With one model this is FedAvg.

For its predictions, a client again chooses among the last models by its training samples; the authors' code chooses by
test samples. `shared` is the weight sharing of the paper (section 6): parameters that all models have in common.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray

from pflcli.method import Predictor, Run, parameters
from pflcli.methods.parts import clusters

KIND = "server"
NEEDS = ()
ADAPTS = True
SENDS_MORE = "models, of which the server takes a mean per cluster"
PAPER = "IFCA"
YEAR = 2020
TASKS = ("any",)
RECORDS = ("cluster",)
GRID = {"k": (2, 3, 4, 6)}

State = dict[str, Any]


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    k: Annotated[int, Ge(1)] = 4
    """train this many models; 1 is FedAvg"""
    shared: str = ""
    """average parameters whose names start with this, such as `body.`, over all clients; empty shares none"""


def setup(run: Run) -> State:
    """Return k models drawn independently, and the cluster of every client: none as yet, -1."""
    models = run.initial_models(run.cfg.k)
    if run.cfg.shared:
        for name in parameters.part(run.init, run.cfg.shared):
            models[name][:] = run.init[name]
    return {"models": models, "cluster": torch.full((len(run.clients),), -1)}


def train_round(run: Run, state: State, t: int) -> State:
    """Send all models to a cohort; each client trains the best one for its samples; average by model."""
    here, models, before = run.cohort(t), state["models"], state["cluster"].cpu().numpy()
    cohort = run.everyone(here)
    own_parameters = {n: v for n, v in run.init.items() if not (run.cfg.shared and n.startswith(run.cfg.shared))}
    run.send("down", own_parameters, copies=run.cfg.k * len(cohort))
    run.send("down", {n: v for n, v in run.init.items() if n not in own_parameters}, copies=len(cohort))
    models, cluster = clusters.train_and_average(run, models, here, np.full_like(before, -1), t, shared=run.cfg.shared)
    return {"models": models, "cluster": torch.from_numpy(np.where(cluster < 0, before, cluster))}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with the model that suits each client's training samples best; without any, with the most common one."""
    chosen = clusters.find_best(run, state["models"], clients, state["cluster"].cpu().numpy())
    return run.predictor(clients, clusters.select_models(state["models"], chosen))
