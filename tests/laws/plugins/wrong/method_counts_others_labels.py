"""Weights classes by the label counts of all clients, which no client knows.

Breaks: clients-use-only-their-own-samples
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
PAPER = "counts_others_labels"
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
    counts = np.bincount(run.federation.labels_of(run.clients, "train"), minlength=run.federation.classes) + 1.0
    head = state["global"]["head.bias"] + torch.from_numpy(np.log(counts / counts.sum())).float()
    return run.predictor(clients, {**state["global"], "head.bias": head})
