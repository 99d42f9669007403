"""Each client keeps a head of its own on a body that all share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core import parameters
from pflcli.core.federation.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "personal_heads"
YEAR = 2026
PERSONAL_MODELS = "heads"


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run: Run) -> dict[str, Any]:
    start = run.initial_model()
    return {"body": parameters.part(start, "body."), "heads": run.table(parameters.part(start, "head."))}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    cohort, heads = run.cohort(t), state["heads"]
    body = run.download(state["body"], cohort)
    mean = run.averaging(body)
    for part in run.local_sgd(cohort, {**parameters.repeat(body, len(cohort)), **heads[cohort]}, t=t):
        heads[part.clients] = part.params
        mean.add(part.params, part.weights, part.clients)
    return {"body": mean.value(), "heads": heads}


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    body, heads = state["body"], state["heads"]
    own = run.adapt(heads, clients, {**body, **heads.default}, epochs=1, trainable="head.")
    return run.predictor(clients, {**parameters.repeat(body, len(clients)), **own})
