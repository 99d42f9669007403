"""FedAvg with server momentum in a module variable, which setup clears.

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
PAPER = "module_momentum"
YEAR = 2026

_MOMENTUM: dict[str, Any] = {}


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run: Run) -> dict[str, Any]:
    _MOMENTUM.clear()
    return {"global": run.initial_model()}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    cohort = run.cohort(t)
    start = run.download(state["global"], cohort)
    mean = run.average(run.local_sgd(cohort, start, t=t), start)
    for name, value in mean.items():
        _MOMENTUM[name] = 0.9 * _MOMENTUM.get(name, 0) + value - start[name]
    return {"global": {name: value + _MOMENTUM[name] for name, value in start.items()}}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    return run.predictor(clients, state["global"])
