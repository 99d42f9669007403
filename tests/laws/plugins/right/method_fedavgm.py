"""FedAvg with server momentum in the state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.core.federation.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "fedavgm"
YEAR = 2026


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run: Run) -> dict[str, Any]:
    start = run.initial_model()
    return {"global": start, "momentum": {name: torch.zeros_like(value) for name, value in start.items()}}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    cohort = run.cohort(t)
    start = run.download(state["global"], cohort)
    mean = run.average(run.local_sgd(cohort, start, t=t), start)
    momentum = {name: 0.9 * state["momentum"][name] + value - start[name] for name, value in mean.items()}
    return {"global": {name: value + momentum[name] for name, value in start.items()}, "momentum": momentum}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    return run.predictor(clients, state["global"])
