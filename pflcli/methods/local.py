"""Local: each client trains alone from the common initialisation and sends nothing.

The baseline of kNN-Per (Marfoq et al., 2022), section 5. A client trains for as many epochs, or steps if the settings
give steps, as a client of FedAvg does over all rounds in expectation. The learning rate follows the same schedule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from pflcli.method import Predictor, Run

KIND = "local"
NEEDS = ()
PAPER = "Local"
YEAR = 2022
TASKS = ("any",)


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    epochs: Annotated[int, Ge(0)] = 0
    """train for this many local epochs in total; 0 uses rounds x participation x epochs of the training settings"""
    steps: Annotated[int, Ge(0)] = 0
    """train for this many local steps in total, instead of epochs; 0 uses rounds x participation x steps of the
    training settings"""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """train by SGD or by Adam (Kingma & Ba's constants), with the learning rate of the training settings"""

    def __post_init__(self) -> None:
        if self.epochs and self.steps:
            raise ValueError("epochs and steps both say how long clients train; give one")


def personalize(run: Run, state: dict[str, object], clients: NDArray[np.int64]) -> Predictor:
    """Train each client's own model and predict with it."""
    plan, cfg = run.settings, run.cfg
    rounds = plan.rounds * plan.participation
    epochs, steps = cfg.epochs, cfg.steps
    if not (epochs or steps):
        epochs, steps = (max(1, math.ceil(rounds * each)) if each else 0 for each in (plan.epochs, plan.steps))
    count = steps or epochs
    trained = run.local_sgd(
        clients,
        run.initial_model(),
        t="local",
        epochs=epochs,
        steps=steps or None,
        lr=lambda number: plan.lr_at(number * plan.rounds // count),
        optimizer=run.settings.optimizer if cfg.optimizer == "sgd" else cfg.optimizer,
    )
    return run.predictor(clients, trained)
