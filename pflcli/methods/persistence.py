"""Persistence: predicts that nothing changes, so each label is the last value of the target in its window.

A reference rather than a method: a forecast that is not above it has learned nothing from the past. Samples must be
windows of a series that has the target as a channel, as ``pfl import --window`` makes them, in a scale that all clients
share. No model is trained and nothing is sent. It is the naive forecast of Hyndman and Athanasopoulos (2021),
Forecasting: Principles and Practice, section 5.2, https://otexts.com/fpp3/simple-methods.html, for any horizon.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pflcli.method import Predictor, Run

KIND = "local"
NEEDS = ()
PAPER = "Persistence"
YEAR = 2021
DETERMINISTIC = True
REFERENCE = True
TASKS = ("series",)


@dataclass(frozen=True)
class Config:
    """No options."""


def personalize(run: Run, state: dict[str, object], clients: NDArray[np.int64]) -> Predictor:
    """Predict the last value of the target in each window, in the unit of labels, for every quantile."""
    (channel, shift, scale), scales = run.label_task.past, run.federation.label_scales

    def answer(split: str) -> dict[str, NDArray[np.float32]]:
        last = run.federation.samples(run.federation.rows_of(clients, split))[:, -1:, int(channel)]
        p = (shift + scale * last.double()).cpu().numpy()
        if scales is not None:  # predictions are then those of standardized labels
            p = scales.standardize(p, np.repeat(clients, run.federation.sizes(split)[clients]))
        return {"p": np.repeat(p.astype(np.float32), run.task.outputs, axis=1)}

    return Predictor(answer, run.predicted_splits)
