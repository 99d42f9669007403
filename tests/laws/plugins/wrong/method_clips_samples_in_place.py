"""Clips the samples of each cohort in place, and with them the test samples, instead of a copy.

Breaks: samples-are-not-changed
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.federation.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "clips_samples_in_place"
YEAR = 2026


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run: Run) -> dict[str, Any]:
    return {"global": run.initial_model()}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    run.federation.x.clamp_(-1, 1)
    cohort = run.cohort(t)
    downloaded = run.download(state["global"], cohort)
    return {"global": run.average(run.local_sgd(cohort, downloaded, t=t), downloaded)}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    return run.predictor(clients, state["global"])
