"""The server weights clients by their losses, as in q-FedAvg."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.federation.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "weights_by_loss"
YEAR = 2026


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run: Run) -> dict[str, Any]:
    return {"global": run.initial_model()}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    cohort = run.cohort(t)
    start = run.download(state["global"], cohort)
    losses = run.client_losses(cohort, start, "train")
    mean = run.averaging(start)
    for part in run.local_sgd(cohort, start, t=t):
        mean.add(part.params, part.weights * losses[np.isin(cohort, part.clients)], part.clients)
    return {"global": mean.value()}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    return run.predictor(clients, state["global"])
