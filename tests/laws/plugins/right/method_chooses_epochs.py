"""Each client chooses by validation samples for how long it fine-tunes, for each of them by the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.federation.run import Predictor, Run
from pflcli.methods.parts.folds import Folds

KIND = "server"
NEEDS = ()
PAPER = "chooses_epochs"
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
    start, earlier = state["global"], run.read_choices("epochs", clients)
    folds = Folds.divide(np.cumsum([0, *run.federation.sizes("validation")[clients]]))
    p, y = run.answers(clients, start, "validation")
    least, least_apart = folds.sum(run.task.bounded_losses(p, y))
    models, chosen = run.table(start), np.zeros(len(clients))
    for epochs in (1, 2):
        tuned = run.table(start)
        for part in run.local_sgd(clients, start, t="tune", epochs=epochs):
            tuned[part.clients] = part.params
        own, _ = run.answers(clients, tuned, "validation")
        losses, apart = folds.sum(run.task.bounded_losses(own, y))
        better = losses < least if earlier is None else earlier == epochs
        models[clients[better]] = tuned[clients[better]]
        least, chosen = np.where(better, losses, least), np.where(better, epochs, chosen)
        p = np.where(folds.pick(apart < least_apart)[:, None], own, p)
        least_apart = np.minimum(apart, least_apart)
    predictor = run.predictor(clients, models)

    def answer(split: str) -> Mapping[str, NDArray[np.float32]]:
        return {"p": p} if split == "validation" and earlier is None else predictor.answer(split)

    return replace(predictor, answer=answer, tuned={"epochs": chosen})


def choices(cfg: Config) -> tuple[str, ...]:
    """Return what clients choose."""
    return ("epochs",)
