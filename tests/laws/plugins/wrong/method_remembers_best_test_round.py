"""Remembers the test accuracy of each round, and predicts with the model of the best.

Breaks: labels-of-predicted-samples-change-no-prediction
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.federation.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "remembers_best_test_round"
YEAR = 2026
ADAPTS = True

_HISTORY: list[tuple[float, dict[str, Any]]] = []


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run: Run) -> dict[str, Any]:
    _HISTORY.clear()
    return {"global": run.initial_model()}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    cohort = run.cohort(t)
    downloaded = run.download(state["global"], cohort)
    model = run.average(run.local_sgd(cohort, downloaded, t=t), downloaded)
    _HISTORY.append((run.accuracy(model, "test"), model))
    return {"global": model}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    best = max(_HISTORY, key=lambda entry: entry[0])[1] if _HISTORY else state["global"]
    return run.predictor(clients, best)
