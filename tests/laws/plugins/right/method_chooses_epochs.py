"""Each client chooses by validation samples for how long it fine-tunes, and declares it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.federation.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "chooses_epochs"
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
    start, earlier = state["global"], run.read_choices("epochs", clients)
    models, least = run.table(start), run.client_losses(clients, start, "validation")
    chosen = np.zeros(len(clients))
    for epochs in (1, 2):
        for part in run.local_sgd(clients, start, t="tune", epochs=epochs):
            places = np.flatnonzero(np.isin(clients, part.clients))
            losses = run.client_losses(part.clients, part.params, "validation")
            better = losses < least[places] if earlier is None else earlier[places] == epochs
            models[part.clients[better]] = {name: value[better] for name, value in part.params.items()}
            least[places[better]], chosen[places[better]] = losses[better], epochs
    return replace(run.predictor(clients, models), tuned={"epochs": chosen})


def choices(cfg: Config) -> tuple[str, ...]:
    """Return what clients choose."""
    return ("epochs",)
