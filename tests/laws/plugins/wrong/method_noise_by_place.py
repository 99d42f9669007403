"""Adds noise to uploads, drawn by the place of a client among those that train together.

Breaks: clients-are-trained-in-any-number-at-once
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
PAPER = "noise_by_place"
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
    mean = run.averaging(downloaded)
    for part in run.local_sgd(cohort, downloaded, t=t):
        noisy = {name: value + 0.01 * _draw(run, t, name, value) for name, value in part.params.items()}
        mean.add(noisy, part.weights, part.clients)
    return {"global": mean.value()}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    start = state["global"]
    return run.predictor(clients, run.local_sgd(clients, start, t="tune", epochs=1))


def _draw(run: Run, t: int, name: str, value: torch.Tensor) -> torch.Tensor:
    rows = [run.rng("noise", t, name, place).standard_normal(tuple(value.shape[1:])) for place in range(len(value))]
    return torch.from_numpy(np.stack(rows)).to(value.dtype)
