"""Adds the sum of raw updates to the mean, if the option says so.

Breaks: every-choice-uses-samples-alike
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pflcli.core.federation.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "sums_raw_updates_by_choice"
YEAR = 2026
ADAPTS = True


@dataclass(frozen=True)
class Config:
    """The option."""

    server: Literal["mean", "sum"] = "mean"
    """how the server moves"""


def setup(run: Run) -> dict[str, Any]:
    return {"global": run.initial_model()}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    cohort = run.cohort(t)
    downloaded = run.download(state["global"], cohort)
    mean, more = run.averaging(downloaded), {name: 0 * value for name, value in downloaded.items()}
    for part in run.local_sgd(cohort, downloaded, t=t):
        mean.add(part.params, part.weights, part.clients)
        if run.cfg.server == "sum":
            more = {name: value + (part.params[name] - downloaded[name]).sum(0) for name, value in more.items()}
    return {"global": {name: value + 0.1 * more[name] for name, value in mean.value().items()}}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    start = state["global"]
    return run.predictor(clients, run.local_sgd(clients, start, t="tune", epochs=1))
