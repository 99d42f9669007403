"""Extrapolates from the global model of two rounds ago, which a module variable keeps by round.

Breaks: another-process-gives-the-same-bytes
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.federation.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "model_of_two_rounds_ago"
YEAR = 2026

_MODELS: dict[int, dict[str, Any]] = {}


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run: Run) -> dict[str, Any]:
    return {"global": run.initial_model()}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    cohort = run.cohort(t)
    _MODELS[t] = state["global"]
    start = run.download(state["global"], cohort)
    mean = run.average(run.local_sgd(cohort, start, t=t), start)
    older = _MODELS.get(t - 2, mean) if t >= 2 else mean
    return {"global": {name: value + 0.2 * (value - older[name]) for name, value in mean.items()}}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    return run.predictor(clients, state["global"])
