"""Corrects probabilities by each client's class frequencies, counted in the split that it predicts.

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
PAPER = "test_class_prior"
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
    tuned = run.predictor(clients, state["global"])

    def answer(split: str) -> dict[str, NDArray[np.float32]]:
        p, parts, first = tuned.answer(split)["p"].astype(np.float64), [], 0
        for client in clients:
            y = run.federation.y[run.federation.block(int(client), split)].numpy()
            prior = np.bincount(y, minlength=p.shape[1]) + 1.0
            own = p[first : first + len(y)] * prior
            parts.append(own / own.sum(axis=1, keepdims=True))
            first += len(y)
        return {"p": np.concatenate(parts).astype(np.float32)}

    return Predictor(answer, run.predicted_splits)
