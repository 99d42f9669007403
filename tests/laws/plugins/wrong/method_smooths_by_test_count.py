"""Smooths the predictions of clients with many test samples.

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
PAPER = "smooths_by_test_count"
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
        p, own = inner.answer(split)["p"], run.federation.sizes("train")[clients]
        count = run.federation.sizes(split)[clients]
        share = np.repeat((1 + own) / (1 + own + count), count)[:, None]
        p = share * p + (1 - share) / p.shape[1]
        return {"p": (p / p.sum(axis=1, keepdims=True)).astype(np.float32)}

    return Predictor(answer, inner.splits)
