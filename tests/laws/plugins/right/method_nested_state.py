"""Keeps the sum and the number of rounds of the global models in nested dicts, and predicts with their mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.core.federation.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "nested_state"
YEAR = 2026
ADAPTS = True


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run: Run) -> dict[str, Any]:
    start = run.initial_model()
    zero = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in start.items()}
    return {"global": start, "average": {"sum": zero, "counts": {"rounds": torch.tensor(0)}}}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    cohort = run.cohort(t)
    start = run.download(state["global"], cohort)
    model = run.average(run.local_sgd(cohort, start, t=t), start)
    average = state["average"]
    total = {name: value + model[name] for name, value in average["sum"].items()}
    return {"global": model, "average": {"sum": total, "counts": {"rounds": average["counts"]["rounds"] + 1}}}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    average, count = state["average"], int(state["average"]["counts"]["rounds"])
    if not count:
        return run.predictor(clients, state["global"])
    return run.predictor(clients, {name: (value / count).float() for name, value in average["sum"].items()})
