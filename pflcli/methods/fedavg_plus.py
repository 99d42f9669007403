"""FedAvg+: the global model, fine-tuned by each client on its own samples.

Jiang et al. (2019), https://arxiv.org/abs/1909.12488; a baseline of kNN-Per (Marfoq et al., 2022), section 5. With
`upper` it is the federated transfer learning (FTL) that FedHAM (Gao et al., 2023) compares with: the upper layers are
trained, the lower ones stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from pflcli import parameters
from pflcli.fl.run import Predictor, Run
from pflcli.parameters import TrainedClients

KIND = "posthoc"
NEEDS = ("backbone",)
PAPER = "FedAvg+"
YEAR = 2019
GRID = {"epochs": (1, 2, 5, 10), "lr": (0.0, 0.01, 0.03, 0.1)}


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    epochs: Annotated[int, Ge(0)] = 5
    """fine-tune for this many local epochs; 0 leaves the backbone as it is"""
    steps: Annotated[int, Ge(0)] = 0
    """fine-tune for this many local steps, the same for every client, instead of epochs; 0 uses epochs"""
    lr: Annotated[float, Ge(0)] = 0.0
    """fine-tune with this learning rate; 0 uses that of the last round"""
    trainable: str = ""
    """fine-tune only parameters whose names start with this, such as `head.`; empty fine-tunes all"""
    upper: Annotated[int, Ge(0)] = 0
    """fine-tune only this many layers, counted from the last; 1 is the head, 0 all layers"""

    def __post_init__(self) -> None:
        if self.steps and self.epochs != type(self).epochs:
            raise ValueError("epochs and steps both say how long clients fine-tune; give one")
        if self.trainable and self.upper:
            raise ValueError("trainable and upper both say what to fine-tune; give one")


def personalize(run: Run, state: dict[str, object], clients: NDArray[np.int64]) -> Predictor:
    """Fine-tune the backbone on each client and answer with the result."""
    return run.predictor(clients, fine_tuned(run, clients))


def fine_tuned(run: Run, clients: NDArray[np.int64]) -> Iterator[TrainedClients]:
    """Return the fine-tuned models of the clients, in parts; raises UsageError if ``trainable`` names no parameters."""
    assert run.backbone is not None
    trainable = parameters.upper(run.init, run.cfg.upper) if run.cfg.upper else run.cfg.trainable
    parameters.part(run.init, run.cfg.trainable)  # refuses a misspelt name, which would train nothing
    return run.local_sgd(
        clients,
        run.backbone,
        t="fine-tune",
        epochs=run.cfg.epochs,
        steps=run.cfg.steps or None,
        lr=run.cfg.lr or run.settings.lr_at(run.settings.rounds - 1),
        trainable=trainable,
    )
