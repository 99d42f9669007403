"""Constant: predicts the most frequent class, or the mean, of each client's training samples, whatever the features.

A reference rather than a method: a network that is not above it has learned nothing from the features. The
probabilities are the frequencies of the client's classes; of equally frequent classes, the first is predicted. A client
without training samples is given the frequencies of all clients. No model is trained and nothing is sent. This is
`DummyClassifier(strategy="prior")` of scikit-learn (Pedregosa et al., 2011), fitted by each client. If labels are a
quantity or counts, it predicts the mean label, as `DummyRegressor` does, and for quantiles those of its labels.
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
TASKS = ("classes", "quantity", "quantile", "count")


@dataclass(frozen=True)
class Config:
    """No options."""


def personalize(run: Run, state: dict[str, object], clients: NDArray[np.int64]) -> Predictor:
    """Predict each client's class frequencies, or its mean label, for all its samples."""
    constant = _frequencies(run, clients) if run.task.kind == "classes" else mean_labels(run, clients)

    def answer(split: str) -> dict[str, NDArray[np.float32]]:
        return {"p": np.repeat(constant, run.federation.sizes(split)[clients], axis=0)}

    return Predictor(answer, run.predicted_splits)


def _frequencies(run: Run, clients: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the class frequencies (m, C) of the clients' training samples."""
    counts = training_counts(run, clients)
    empty = counts.sum(axis=1) == 0
    if empty.any():
        counts[empty] = training_counts(run, run.federation.participants).sum(axis=0)
        counts[counts.sum(axis=1) == 0] = 1
    return np.asarray(counts / counts.sum(axis=1, keepdims=True), np.float32)


def mean_labels(run: Run, clients: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the mean label (m, 1) of the clients' training samples, or their quantiles (m, C).

    They are those of all clients for a client without training samples.
    """
    labels = [run.federation.labels_of(np.asarray([client]), "train") for client in clients.tolist()]
    levels = getattr(run.task, "quantiles", ())
    known = [np.quantile(y, levels) if levels else np.full(1, y.mean()) for y in labels if len(y)]
    constants = np.tile(run.task.default(), (len(labels), 1))
    constants[[bool(len(y)) for y in labels]] = known
    return constants
