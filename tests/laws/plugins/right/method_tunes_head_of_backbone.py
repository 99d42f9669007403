"""Fine-tunes the head of a backbone on each client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.federation.run import Predictor, Run

KIND = "posthoc"
NEEDS = ("backbone",)
PAPER = "tunes_head_of_backbone"
YEAR = 2026


@dataclass(frozen=True)
class Config:
    """No options."""


def personalize(run: Run, state: dict[str, Any], clients: NDArray[np.int64]) -> Predictor:
    assert run.backbone is not None
    return run.predictor(clients, run.local_sgd(clients, run.backbone, t="tune", epochs=3, trainable="head."))
