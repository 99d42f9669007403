"""Fine-tunes for as many epochs as validation samples favour, and does not declare this choice.

Breaks: validation-samples-only-choose
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.federation.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "stops_early_on_validation"
YEAR = 2026
ADAPTS = True


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run: Run) -> dict[str, Any]:
    return {"global": run.initial_model()}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    cohort = run.cohort(t)
    downloaded = run.download(state["global"], cohort)
    return {"global": run.average(run.local_sgd(cohort, downloaded, t=t), downloaded)}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    start = state["global"]
    models = run.table(start)
    least = run.client_losses(clients, start, "validation")
    for epochs in (1, 2, 4):
        for part in run.local_sgd(clients, start, t="tune", epochs=epochs):
            losses = run.client_losses(part.clients, part.params, "validation")
            places = np.flatnonzero(np.isin(clients, part.clients))
            better = losses < least[places]
            models[part.clients[better]] = {name: value[better] for name, value in part.params.items()}
            least[places[better]] = losses[better]
    return run.predictor(clients, models)
