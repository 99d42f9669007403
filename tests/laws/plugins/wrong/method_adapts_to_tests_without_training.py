"""Divides the predictions of clients without training samples by their mean.

Breaks: each-sample-is-predicted-on-its-own
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.federation.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "adapts_to_tests_without_training"
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
    inner = run.predictor(clients, run.local_sgd(clients, state["global"], t="tune", epochs=1))

    def answer(split: str) -> dict[str, NDArray[Any]]:
        p = inner.answer(split)["p"].copy()
        ends = np.concatenate([[0], np.cumsum(run.federation.sizes(split)[clients])])
        for place in np.flatnonzero(run.federation.sizes("train")[clients] == 0):
            part = p[ends[place] : ends[place + 1]]
            part = part / (part.mean(axis=0, keepdims=True) + 1e-6) if len(part) else part
            p[ends[place] : ends[place + 1]] = part / part.sum(axis=1, keepdims=True)
        return {"p": p}

    return Predictor(answer, inner.splits)
