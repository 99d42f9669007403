"""Mixes predictions with labels, if the option is on.

Breaks: every-choice-uses-samples-alike
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.federation.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "calibrates_by_labels"
YEAR = 2026
ADAPTS = True


@dataclass(frozen=True)
class Config:
    """The option."""

    calibrate: bool = False
    """calibrate predictions"""


def setup(run: Run) -> dict[str, Any]:
    return {"global": run.initial_model()}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    cohort = run.cohort(t)
    downloaded = run.download(state["global"], cohort)
    return {"global": run.average(run.local_sgd(cohort, downloaded, t=t), downloaded)}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    inner = run.predictor(clients, run.local_sgd(clients, state["global"], t="tune", epochs=1))
    if not run.cfg.calibrate:
        return inner

    def answer(split: str) -> dict[str, NDArray[Any]]:
        p = inner.answer(split)["p"]
        own = np.eye(p.shape[1], dtype=np.float32)[run.federation.labels_of(clients, split)]
        return {"p": (p + own) / 2}

    return Predictor(answer, inner.splits)
