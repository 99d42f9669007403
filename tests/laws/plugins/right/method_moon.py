"""MOON-like: representations are pulled to those of the global model and away from the client's last model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pflcli.engine.local_sgd import Batch, Model
from pflcli.federation.run import Predictor, Run
from pflcli.parameters import Params

KIND = "server"
NEEDS = ()
PAPER = "moon"
YEAR = 2026
PERSONAL_MODELS = "last"


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run: Run) -> dict[str, Any]:
    start = run.initial_model()
    return {"global": start, "last": run.table(start)}


def train_round(run: Run, state: dict[str, Any], t: int) -> dict[str, Any]:
    cohort, last = run.cohort(t), state["last"]
    start = run.download(state["global"], cohort)
    own = {f"last.{name}": value for name, value in last[cohort].items()}
    mean = run.averaging(start)
    shared = {f"global.{name}": value for name, value in start.items()}
    for part in run.local_sgd(cohort, start, t=t, objective=contrastive_loss, own=own, shared=shared):
        last[part.clients] = part.params
        mean.add(part.params, part.weights, part.clients)
    return {"global": mean.value(), "last": last}


def contrastive_loss(model: Model, params: Params, batch: Batch) -> Tensor:
    """Return the cross-entropy plus the contrastive loss of the representations."""
    z = model.features(params, batch.x)
    others = [
        model.features({n.removeprefix(prefix): v for n, v in models.items()}, batch.x).detach()
        for prefix, models in (("global.", batch.shared), ("last.", batch.own))
    ]
    near, far = (functional.cosine_similarity(z, other, dim=1) / 0.5 for other in others)
    return batch.cross_entropy(model(params, batch.x)) + batch.mean(functional.softplus(far - near))


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    models = run.adapt(state["last"], clients, state["global"], epochs=1)
    return run.predictor(clients, models)
