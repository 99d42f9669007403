"""Alone: each client takes the best of three classifiers that are no networks, and learns without the others.

A reference rather than a federated method: taking part in rounds should gain over it. A client trains logistic
regression, a linear discriminant analysis with a shrunk covariance, and a forest of 100 trees by scikit-learn,
Pedregosa et al. (2011), https://jmlr.org/papers/v12/pedregosa11a.html, on pixels, standardized features, or counts of
tokens. It takes the one that is right most often in stratified three-fold cross-validation on its training samples.
Validation samples choose nothing, so that the score on them is honest. No single classifier is enough: on some data
each of the three is far behind another one.

If labels are a quantity or counts, a client takes ridge or Poisson regression, or a forest, by the smaller loss in
cross-validation. For quantiles, it adds those of the errors in cross-validation to the prediction.

A client with samples of a single class predicts this class; one with fewer than three samples, logistic regression; one
without samples, all classes alike, or the mean label of all clients. Which model each client took is stored beside its
predictions. Nothing is sent. Training settings such as rounds have no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pflcli.method import Predictor, Run
from pflcli.methods.parts import classifiers, regressors

KIND = "local"
NEEDS = ()
PAPER = "Alone"
YEAR = 2011
REFERENCE = True
TASKS = ("classes", "quantity", "quantile", "count")


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    model: Literal["choose", "logistic", "lda", "forest", "boosting", "linear"] = "choose"
    """train this model; choose takes the best of logistic, lda and forest for classes, and of linear and forest for
    numbers, by cross-validation. For classes, linear is logistic. Boosting is for at most a hundred features"""


def personalize(run: Run, state: dict[str, object], clients: NDArray[np.int64]) -> Predictor:
    """Train each client's classifier and predict with it."""
    data = run.federation
    predict = {}
    for client in clients.tolist():
        rows = data.rows(client, "train")
        samples, y = data.samples(rows).cpu().numpy(), data.labels_of(np.asarray([client]), "train")
        predict[client] = fit(run, samples, y, run.rng("alone", client))

    def answer(split: str) -> dict[str, NDArray[np.float32]]:
        parts = [each(data.samples(data.rows(client, split)).cpu().numpy()) for client, each in predict.items()]
        return {"p": np.concatenate(parts)}

    return Predictor(answer, run.predicted_splits, tuned=record_choices(run, [*predict.values()]))


def fit(run: Run, samples: NDArray[Any], y: NDArray[Any], draw: np.random.Generator) -> classifiers.Classifier:
    """Train the model that the options name on samples (n, ...) with labels (n,) of the run's task."""
    if run.task.kind == "classes":
        model = "logistic" if run.cfg.model == "linear" else run.cfg.model
        return classifiers.fit(samples, y, run.federation.classes, model, draw)
    is_count, levels = run.task.kind == "count", getattr(run.task, "quantiles", ())
    return regressors.fit(samples, y, run.task.default(), run.cfg.model, draw, are_counts=is_count, quantiles=levels)


def record_choices(run: Run, fitted: Sequence[classifiers.Classifier]) -> dict[str, NDArray[np.float64]]:
    """Return which model each client (m,) chose, by the names of models."""
    compared = classifiers.COMPARED if run.task.kind == "classes" else regressors.COMPARED
    return classifiers.record_choices(fitted, run.cfg.model, compared)
