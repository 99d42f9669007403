"""Rescales probabilities by each client's test batch, and declares it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.federation.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "transductive"
YEAR = 2026
ADAPTS = True
TRANSDUCTIVE = True


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
    plain = run.predictor(clients, state["global"])

    def answer(split: str) -> dict[str, NDArray[np.float32]]:
        p = plain.answer(split)["p"].astype(np.float64)
        parts, first = [], 0
        for count in run.federation.sizes(split)[clients]:
            own = p[first : first + count]
            own = own / own.mean(axis=0) if count else own
            parts.append(own / own.sum(axis=1, keepdims=True))
            first += count
        return {"p": np.concatenate(parts).astype(np.float32)}

    return Predictor(answer, run.predicted_splits)
