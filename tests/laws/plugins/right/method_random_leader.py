"""One client of the cohort, drawn at random, counts twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.federation.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "random_leader"
YEAR = 2026


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run: Run) -> dict[str, Any]:
    return {"global": run.initial_model()}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    cohort = run.cohort(t)
    start = run.download(state["global"], cohort)
    leader = int(run.rng("leader", t).integers(len(run.clients)))
    mean = run.averaging(start)
    for part in run.local_sgd(cohort, start, t=t):
        mean.add(part.params, part.weights * (1 + (part.clients == leader)), part.clients)
    return {"global": mean.value()}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    return run.predictor(clients, state["global"])
