"""Adds noise to uploads, drawn for each client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.core.federation.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "noise_by_client"
YEAR = 2026
ADAPTS = True
SENDS_MORE = "noise that is no part of differential privacy"


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
        noisy = {name: value + 0.01 * _draw(run, t, name, value, part.clients) for name, value in part.params.items()}
        mean.add(noisy, part.weights, part.clients)
    return {"global": mean.value()}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    start = state["global"]
    return run.predictor(clients, run.local_sgd(clients, start, t="tune", epochs=1))


def _draw(run: Run, t: int, name: str, value: torch.Tensor, clients: NDArray[np.int64]) -> torch.Tensor:
    rows = [run.rng("noise", t, name, client).standard_normal(tuple(value.shape[1:])) for client in clients.tolist()]
    return torch.from_numpy(np.stack(rows)).to(value.dtype)
