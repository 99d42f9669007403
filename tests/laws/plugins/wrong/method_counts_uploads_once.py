"""Averages models by hand, and counts the mean instead of the models.

Breaks: bytes-are-counted-once-for-each-client
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.federation.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "counts_uploads_once"
YEAR = 2026
ADAPTS = True
SENDS_MORE = "models, which the server averages itself"


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run: Run) -> dict[str, Any]:
    return {"global": run.initial_model()}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    cohort = run.cohort(t)
    start = run.download(state["global"], cohort)
    parts = list(run.local_sgd(cohort, start, t=t))
    total = sum(part.weights.sum() for part in parts)
    mean = {}
    for name in start:
        each = [np.tensordot(part.weights, part.params[name].double().numpy(), axes=1) for part in parts]
        mean[name] = torch.from_numpy(sum(each) / total).float()
    run.send("up", mean)
    return {"global": mean}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    return run.predictor(clients, run.local_sgd(clients, state["global"], t="tune", epochs=1))
