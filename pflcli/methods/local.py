"""Local: each client trains alone from the common initialisation and sends nothing.

The baseline of kNN-Per (Marfoq et al., 2022), section 5. It learns for as many epochs as a client of FedAvg does over
all rounds in expectation, with the same learning rate at the same share of the way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from pflcli.fl.run import Predictor, Run

KIND = "local"
NEEDS = ()
PAPER = "kNN-Per, baseline"
YEAR = 2022


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    epochs: Annotated[int, Ge(0)] = 0
    """local epochs in all; 0 takes rounds x participation x epochs of the training settings"""


def personalize(run: Run, state: dict[str, object], clients: NDArray[np.int64]) -> Predictor:
    """Train each client's own model and answer with it."""
    plan = run.settings
    epochs = run.cfg.epochs or max(1, math.ceil(plan.rounds * plan.participation * plan.epochs))
    trained = run.local_sgd(
        clients,
        run.start(),
        t="local",
        epochs=epochs,
        lr=lambda epoch: plan.lr_at(epoch * plan.rounds // epochs),
    )
    return run.predictor(clients, trained)
