"""Keeps each client's last model in a module variable, and starts from it when personalizing.

Breaks: another-process-gives-the-same-bytes
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
PAPER = "cached_personal_models"
YEAR = 2026
ADAPTS = True

_LAST: dict[int, dict[str, Any]] = {}


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run: Run) -> dict[str, Any]:
    _LAST.clear()
    return {"global": run.initial_model()}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    cohort = run.cohort(t)
    start = run.download(state["global"], cohort)
    mean = run.averaging(start)
    for part in run.local_sgd(cohort, start, t=t):
        for place, client in enumerate(part.clients.tolist()):
            _LAST[client] = {name: value[place].clone() for name, value in part.params.items()}
        mean.add(part.params, part.weights, part.clients)
    return {"global": mean.value()}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    models = [_LAST.get(int(client), state["global"]) for client in clients]
    stacked = {name: torch.stack([model[name] for model in models]) for name in state["global"]}
    return run.predictor(clients, stacked)
