"""The server trains on validation samples from the sixth round on.

Breaks: validation-samples-only-choose
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.federation.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "trains_on_validation_later"
YEAR = 2026
ADAPTS = True
SENDS_MORE = "all"


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run: Run) -> dict[str, Any]:
    return {"global": run.initial_model()}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    cohort = run.cohort(t)
    downloaded = run.download(state["global"], cohort)
    model = run.average(run.local_sgd(cohort, downloaded, t=t), downloaded)
    if t >= 5:
        model = run.server_sgd(run.federation.rows_of(cohort, "validation"), model, t=t, epochs=1)
    return {"global": model}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    start = state["global"]
    return run.predictor(clients, run.local_sgd(clients, start, t="tune", epochs=1))
