"""Centres predictions by the mean logits of all clients' test samples.

Breaks: each-sample-is-predicted-on-its-own
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
PAPER = "whitens_inputs_of_all"
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
    rows = run.federation.rows_of(run.clients, "test")
    mean = torch.log_softmax(run.engine.infer(state["global"], rows)[0], dim=1).mean(dim=0)

    def answer(split: str) -> dict[str, NDArray[np.float32]]:
        logits = run.engine.infer(state["global"], run.federation.rows_of(clients, split))[0]
        return {"p": torch.softmax((logits - mean).double(), dim=1).float().numpy()}

    return Predictor(answer, run.predicted_splits)
