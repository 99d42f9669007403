"""Constant: predicts the most frequent class among each client's training samples, whatever the features.

A reference rather than a method: a network that is not above it has learned nothing from the features. The
probabilities are the frequencies of the client's classes; of equally frequent classes, the first is predicted. A client
without training samples is given the frequencies of all clients. No model is trained and nothing is sent. This is
`DummyClassifier(strategy="prior")` of scikit-learn (Pedregosa et al., 2011), fitted by each client.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pflcli.method import Predictor, Run
from pflcli.methods.parts.class_counts import training_counts

KIND = "local"
NEEDS = ()
PAPER = "Constant"
YEAR = 2011
DETERMINISTIC = True
REFERENCE = True


@dataclass(frozen=True)
class Config:
    """No options."""


def personalize(run: Run, state: dict[str, object], clients: NDArray[np.int64]) -> Predictor:
    """Predict each client's class frequencies for all its samples."""
    counts = training_counts(run, clients)
    empty = counts.sum(axis=1) == 0
    if empty.any():
        counts[empty] = training_counts(run, run.federation.participants).sum(axis=0)
        counts[counts.sum(axis=1) == 0] = 1
    frequencies = (counts / counts.sum(axis=1, keepdims=True)).astype(np.float32)

    def answer(split: str) -> dict[str, NDArray[np.float32]]:
        blocks = [run.federation.block(int(client), split) for client in clients]
        return {"p": np.repeat(frequencies, [block.stop - block.start for block in blocks], axis=0)}

    return Predictor(answer, run.predicted_splits)
