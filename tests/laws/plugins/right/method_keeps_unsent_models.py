"""Each client predicts with a personal model that it never sends (Ditto with a fixed lambda)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.federation.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "keeps_unsent_models"
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
    return run.predictor(clients, state["own"][clients])
