"""Each client keeps the fine-tuned or the global model, whichever has the higher test accuracy.

Breaks: labels-of-predicted-samples-change-no-prediction
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli import parameters
from pflcli.federation.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "better_on_test"
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
    tuned = {name: value.expand(len(clients), *value.shape).clone() for name, value in state["global"].items()}
    for part in run.local_sgd(clients, state["global"], t="tune", epochs=2):
        for place, client in enumerate(part.clients):
            own = parameters.pick(part.params, place)
            one = np.asarray([client])
            if run.is_correct(one, own, "test").sum() > run.is_correct(one, state["global"], "test").sum():
                index = int(np.flatnonzero(clients == client)[0])
                for name, value in own.items():
                    tuned[name][index] = value
    return run.predictor(clients, tuned)
