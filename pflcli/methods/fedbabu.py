"""FedBABU: trains only the body, under a random head that never changes; each client then fine-tunes.

Oh et al. (2022), https://arxiv.org/abs/2106.06042, Algorithm 1. During the rounds the head keeps its initial weights,
which are the same for all clients. Clients train only the body; bodies are uploaded and averaged, weighted by samples.
Then each client fine-tunes the model on its own samples: body and head in the paper, for 5 epochs. Clients that never
took part do the same. Weight decay does not change the head; in the authors' code it does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from pflcli.method import Params, Predictor, Run, parameters

KIND = "server"
NEEDS = ()
DIVIDES = True
ADAPTS = True
PAPER = "FedBABU"
YEAR = 2022
TASKS = ("any",)
GRID = {"epochs": (1, 5, 10), "lr": (0.0, 0.02, 0.2)}

State = dict[str, Params]


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    epochs: Annotated[int, Ge(0)] = 5
    """fine-tune for this many local epochs; 0 keeps the random head"""
    lr: Annotated[float, Ge(0)] = 0.0
    """fine-tune with this learning rate; 0 uses that of the last round"""
    tune: Literal["all", "head", "body"] = "all"
    """fine-tune all layers, the head alone or the body alone"""


def setup(run: Run) -> State:
    """Return the common initial model."""
    return {"global": run.initial_model()}


def train_round(run: Run, state: State, t: int) -> State:
    """Train the bodies of a cohort under the initial head, average them."""
    cohort, model = run.cohort(t), state["global"]
    body = run.download(parameters.part(model, "body."), cohort)
    start = {**run.init, **body}  # clients know the initial head
    return {"global": {**model, **run.average(run.local_sgd(cohort, start, t=t, trainable="body."), body)}}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Fine-tune the model on each client and predict with the result."""
    tuned = run.local_sgd(
        clients,
        state["global"],
        t="fine-tune",
        epochs=run.cfg.epochs,
        lr=run.cfg.lr or run.settings.lr_at(run.settings.rounds - 1),
        trainable="" if run.cfg.tune == "all" else f"{run.cfg.tune}.",
    )
    return run.predictor(clients, tuned)
