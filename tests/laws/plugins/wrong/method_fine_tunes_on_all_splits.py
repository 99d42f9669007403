"""Fine-tunes on all samples of a client, of which some are test samples.

Breaks: labels-of-predicted-samples-change-no-prediction
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.federation.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "fine_tunes_on_all_splits"
YEAR = 2026
ADAPTS = True


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run: Run) -> dict[str, Any]:
    return {"global": run.initial_model()}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    cohort = run.cohort(t)
    downloaded = run.download(state["global"], cohort)
    return {"global": run.average(run.local_sgd(cohort, downloaded, t=t), downloaded)}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    splits = ("train", "validation", "test")
    return run.predictor(clients, run.local_sgd(clients, state["global"], t="tune", epochs=1, splits=splits))
