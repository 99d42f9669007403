"""Mixes the global and the fine-tuned model by their losses on test samples.

Breaks: labels-of-predicted-samples-change-no-prediction
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.federation.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "best_loss_on_test"
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
    stacked = {name: value.clone() for name, value in run.table(start)[clients].items()}
    for part in run.local_sgd(clients, start, t="tune", epochs=2):
        places = np.flatnonzero(np.isin(clients, part.clients))
        before = run.client_losses(part.clients, start, "test")
        share = before / np.maximum(before + run.client_losses(part.clients, part.params, "test"), 1e-9)
        for name, value in part.params.items():
            for place, a, own in zip(places, share, value, strict=True):
                stacked[name][place] = (1 - a) * start[name] + a * own
    return run.predictor(clients, stacked)
