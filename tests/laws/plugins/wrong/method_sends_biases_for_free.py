"""Counts the weights that it sends, and not the biases.

Breaks: bytes-are-counted-once-for-each-client
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.federation.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "sends_biases_for_free"
YEAR = 2026
ADAPTS = True


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run: Run) -> dict[str, Any]:
    return {"global": run.initial_model()}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    cohort, start = run.cohort(t), state["global"]
    run.download({name: value for name, value in start.items() if name.endswith("weight")}, cohort)
    return {"global": run.average(run.local_sgd(cohort, start, t=t), start)}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    start = state["global"]
    return run.predictor(clients, run.local_sgd(clients, start, t="tune", epochs=1))
