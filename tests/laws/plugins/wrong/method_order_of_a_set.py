"""Draws noise for the layers in the order of a set of their names.

Breaks: another-process-gives-the-same-bytes
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
PAPER = "order_of_a_set"
YEAR = 2026


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run: Run) -> dict[str, Any]:
    return {"global": run.initial_model()}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    cohort = run.cohort(t)
    start = run.download(state["global"], cohort)
    mean, draw = run.average(run.local_sgd(cohort, start, t=t), start), run.rng("noise", t)
    for name in set(mean):
        mean[name] = mean[name] + 1e-3 * torch.from_numpy(draw.normal(size=mean[name].shape)).float()
    return {"global": mean}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    return run.predictor(clients, state["global"])
