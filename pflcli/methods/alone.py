"""Alone: each client takes the best of three classifiers that are no networks, and learns without the others.

A reference rather than a federated method: taking part in rounds should gain over it. A client trains logistic
regression, a linear discriminant analysis with a shrunk covariance, and a forest of 100 trees by scikit-learn,
Pedregosa et al. (2011), https://jmlr.org/papers/v12/pedregosa11a.html, on pixels, standardized features, or counts of
tokens. It takes the one that is right most often in stratified three-fold cross-validation on its training samples.
Validation samples choose nothing, so that the score on them is honest. No single classifier is enough: on some data
each of the three is far behind another one.

A client with samples of a single class predicts this class; one with fewer than three samples, logistic regression; one
without samples, all classes alike. Which classifier each client took is stored beside its predictions. Nothing is sent.
Training settings such as rounds have no effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pflcli.method import Predictor, Run
from pflcli.methods.parts import classifiers

KIND = "local"
NEEDS = ()
PAPER = "Alone"
YEAR = 2011
REFERENCE = True


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    model: Literal["choose", "logistic", "lda", "forest", "boosting"] = "choose"
    """train this classifier; choose takes the best of logistic, lda and forest by cross-validation. Boosting is for at
    most a hundred features"""


def personalize(run: Run, state: dict[str, object], clients: NDArray[np.int64]) -> Predictor:
    """Train each client's classifier and predict with it."""
    data = run.federation
    predict = {}
    for client in clients.tolist():
        rows = data.rows(client, "train")
        predict[client] = classifiers.fit(
            data.samples(rows).cpu().numpy(),
            data.labels_of(np.asarray([client]), "train"),
            data.classes,
            run.cfg.model,
            run.rng("alone", client),
        )

    def answer(split: str) -> dict[str, NDArray[np.float32]]:
        parts = [each(data.samples(data.rows(client, split)).cpu().numpy()) for client, each in predict.items()]
        return {"p": np.concatenate(parts)}

    chosen = classifiers.record_choices([*predict.values()], run.cfg.model)
    return Predictor(answer, run.predicted_splits, tuned=chosen)
