"""Seeds the noise of each layer by the hash of its name.

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
PAPER = "hash_of_names"
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
    for name, value in mean.items():
        draw = run.rng("noise", hash(name), t)
        mean[name] = value + 1e-3 * torch.from_numpy(draw.normal(size=value.shape)).float()
    return {"global": mean}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    return run.predictor(clients, state["global"])
