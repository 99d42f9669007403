"""FedAvg with server momentum in an attribute of the run.

Breaks: a-resumed-run-gives-the-same-bytes, another-process-gives-the-same-bytes
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.federation.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "hidden_momentum"
YEAR = 2026


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run: Run) -> dict[str, Any]:
    return {"global": run.initial_model()}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    cohort = run.cohort(t)
    start = run.download(state["global"], cohort)
    mean = run.average(run.local_sgd(cohort, start, t=t), start)
    momentum = getattr(run, "momentum", dict.fromkeys(mean, 0.0))
    run.momentum = {name: 0.9 * momentum[name] + value - start[name] for name, value in mean.items()}
    return {"global": {name: value + run.momentum[name] for name, value in start.items()}}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    return run.predictor(clients, state["global"])
