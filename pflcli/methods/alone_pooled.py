"""Alone pooled: the best of three classifiers that are no networks, trained on the samples of all clients together.

A reference rather than a federated method, beside `pooled`: that is what one network could do with all samples in one
place, and this what a forest or a linear classifier could, which on tables is often more. The classifiers, and the
choice among them by cross-validation on training samples, are those of `alone`, from scikit-learn, Pedregosa et al.
(2011), https://jmlr.org/papers/v12/pedregosa11a.html. All clients predict with the same classifier, those that join
later too. The bytes sent are those of all samples; the classifier is not sent, but fitted again when it predicts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pflcli.method import Predictor, Run
from pflcli.methods import alone
from pflcli.methods.parts import classifiers

KIND = "server"
NEEDS = ()
ADAPTS = True
PAPER = "Alone pooled"
YEAR = 2011
SENDS_MORE = "samples"
REFERENCE = True
TASKS = ("classes", "quantity", "quantile", "count")


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    model: Literal["choose", "logistic", "lda", "forest", "boosting", "linear"] = "choose"
    """train this model; choose takes the best of logistic, lda and forest for classes, and of linear and forest for
    numbers, by cross-validation. For classes, linear is logistic. Boosting is for at most a hundred features"""


def setup(run: Run) -> dict[str, object]:
    """Send the training samples of all clients to the server."""
    rows = run.federation.rows_of(run.federation.participants, "train")
    run.send("up", {"x": run.federation.samples(rows), "y": run.federation.y[rows]})
    return {}


def personalize(run: Run, state: dict[str, object], clients: NDArray[np.int64]) -> Predictor:
    """Train the classifier, once, and predict with it for every client."""
    data = run.federation
    predict = run.once("alone-pooled", lambda: _fit(run))
    return Predictor(
        lambda split: {"p": predict(data.samples(data.rows_of(clients, split)).cpu().numpy())},
        run.predicted_splits,
        tuned=alone.record_choices(run, [predict] * len(clients)),
    )


def _fit(run: Run) -> classifiers.Classifier:
    """Train the classifier on the training samples of all clients that are not new."""
    data, clients = run.federation, run.federation.participants
    samples = data.samples(data.rows_of(clients, "train")).cpu().numpy()
    return alone.fit(run, samples, data.labels_of(clients, "train"), run.rng("alone-pooled"))
