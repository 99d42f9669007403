"""FedDyn: clients correct their gradients by a linear term of their own, and the server by the mean drift."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.core.federation.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "feddyn"
YEAR = 2026
SENDS_MORE = "nothing, but the server keeps the sum of drifts"
ALPHA = 0.1


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run: Run) -> dict[str, Any]:
    start = run.initial_model()
    zero = {name: torch.zeros_like(start[name]) for name in run.engine.parameters}
    return {"global": start, "h": zero, "slopes": run.table(zero)}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    cohort, slopes = run.cohort(t), state["slopes"]
    start = run.download(state["global"], cohort)
    mean = run.averaging(start)
    for ids in run.client_chunks(cohort, 1 << 20):
        own = slopes[ids]
        drift = {name: -value for name, value in own.items()}
        for part in run.local_sgd(ids, start, t=t, own=drift, adds_own=True, prox=(start, ALPHA)):
            slopes[part.clients] = {
                name: value - ALPHA * (part.params[name] - start[name]) for name, value in own.items()
            }
            mean.add(part.params, np.ones(len(part.clients)), part.clients)
    model = mean.value()
    share = len(cohort) / len(run.federation.participants)
    h = {name: value - ALPHA * share * (model[name] - start[name]) for name, value in state["h"].items()}
    return {
        "global": {**model, **{name: model[name] - value / ALPHA for name, value in h.items()}},
        "h": h,
        "slopes": slopes,
    }


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    return run.predictor(clients, state["global"])
