"""Averages by hand with sizes in ascending order, but models in the order of clients.

Breaks: uploads-have-the-weights-of-their-own-clients
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
PAPER = "sorts_sizes_by_hand"
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
    run.send("up", start, copies=len(cohort))
    (part,) = run.local_sgd(cohort, start, t=t)
    shares = np.sort(part.weights) / part.weights.sum()
    return {
        "global": {
            n: torch.from_numpy(np.tensordot(shares, v.double().numpy(), 1)).float() for n, v in part.params.items()
        }
    }


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    return run.predictor(clients, run.local_sgd(clients, state["global"], t="tune", epochs=1))
