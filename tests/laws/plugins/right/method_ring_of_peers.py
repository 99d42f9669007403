"""Each peer averages its model with that of its neighbour in a ring of the cohort, then trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.federation.run import Predictor, Run

KIND = "peer"
NEEDS = ()
PAPER = "ring_of_peers"
YEAR = 2026
PERSONAL_MODELS = "model"
SENDS_MORE = "models to each other"


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run: Run) -> dict[str, Any]:
    return {"model": run.table(run.initial_model())}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    cohort, models = run.cohort(t), state["model"]
    own = models[cohort]
    if len(cohort) > 1:
        run.send("peer", run.init, copies=len(cohort))
        own = {name: (value + value.roll(1, dims=0)) / 2 for name, value in own.items()}
    for part in run.local_sgd(cohort, own, t=t):
        models[part.clients] = part.params
    return {"model": models}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    models = state["model"]
    return run.predictor(clients, run.adapt(models, clients, models.default, epochs=1))
