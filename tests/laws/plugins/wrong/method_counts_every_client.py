"""Counts the global model for all clients, although only the cohort receives it.

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
PAPER = "counts_every_client"
YEAR = 2026
ADAPTS = True


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run: Run) -> dict[str, Any]:
    return {"global": run.initial_model()}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    cohort = run.cohort(t)
    run.send("down", state["global"], copies=len(run.clients))
    start = state["global"]
    return {"global": run.average(run.local_sgd(cohort, start, t=t), start)}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    return run.predictor(clients, run.local_sgd(clients, state["global"], t="tune", epochs=1))
