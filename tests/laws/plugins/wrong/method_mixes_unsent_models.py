"""Clients predict with the mean of all personal models, which they never send.

Breaks: bytes-are-counted-once-for-each-client
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.federation.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "mixes_unsent_models"
YEAR = 2026
PERSONAL_MODELS = "own"


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run: Run) -> dict[str, Any]:
    return {"global": run.initial_model(), "own": run.table(run.initial_model())}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    cohort, own = run.cohort(t), state["own"]
    downloaded = run.download(state["global"], cohort)
    for part in run.local_sgd(cohort, own[cohort], t=t, name="own", prox=(downloaded, 0.1)):
        own[part.clients] = part.params
    return {"global": run.average(run.local_sgd(cohort, downloaded, t=t), downloaded), "own": own}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    seen = np.setdiff1d(run.clients, state["own"].unwritten(run.clients))
    if not len(seen):
        return run.predictor(clients, state["global"])
    mean = {name: value.double().mean(0).to(value.dtype) for name, value in state["own"][seen].items()}
    return run.predictor(clients, mean)
