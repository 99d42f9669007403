"""Peers average their models with those of their neighbours, and count no bytes.

Breaks: bytes-are-counted-once-for-each-client
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.federation.run import Predictor, Run

KIND = "peer"
NEEDS = ()
PAPER = "peers_send_for_free"
YEAR = 2026
PERSONAL_MODELS = "model"
SENDS_MORE = "models to each other"


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run: Run) -> dict[str, Any]:
    return {"model": run.table(run.initial_model())}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    cohort = run.cohort(t)
    models = state["model"]
    before = models[cohort]
    mean = {name: value.mean(dim=0, keepdim=True) for name, value in before.items()}
    for part in run.local_sgd(cohort, {name: (value + mean[name]) / 2 for name, value in before.items()}, t=t):
        models[part.clients] = part.params
    return {"model": models}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    return run.predictor(clients, state["model"])
