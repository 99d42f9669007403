"""Weights by the sizes of the first clients, instead of the clients of the part.

Breaks: uploads-have-the-weights-of-their-own-clients
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.federation.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "weights_by_place"
YEAR = 2026
ADAPTS = True


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run: Run) -> dict[str, Any]:
    return {"global": run.initial_model()}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    cohort = run.cohort(t)
    start = run.download(state["global"], cohort)
    mean, sizes = run.averaging(start), np.sort(run.federation.sizes("train"))[::-1].astype(np.float64)
    for part in run.local_sgd(cohort, start, t=t):
        mean.add(part.params, sizes[: len(part.clients)], part.clients)
    return {"global": mean.value()}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    return run.predictor(clients, run.local_sgd(clients, state["global"], t="tune", epochs=1))
