"""Keeps the global model of the round with the highest test accuracy.

Breaks: nothing-is-learned-from-test-samples
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.core.federation.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "best_round_on_test"
YEAR = 2026
ADAPTS = True


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run: Run) -> dict[str, Any]:
    start = run.initial_model()
    return {"global": start, "best": start, "accuracy": torch.tensor(0.0)}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    cohort = run.cohort(t)
    downloaded = run.download(state["global"], cohort)
    model = run.average(run.local_sgd(cohort, downloaded, t=t), downloaded)
    accuracy = run.accuracy(model, "test")
    best = model if accuracy > float(state["accuracy"]) else state["best"]
    return {"global": model, "best": best, "accuracy": torch.tensor(max(accuracy, float(state["accuracy"])))}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    return run.predictor(clients, state["best"])
