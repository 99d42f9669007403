"""FedSGD: one gradient over all its samples from each client of a cohort, then one step at the server.

McMahan et al. (2017), https://arxiv.org/abs/1602.05629, section 2: w <- w - lr sum_i p_i grad F_i(w), with p_i the
client's share of the cohort's samples. This is FedAvg with one local epoch of one batch, which is how it is run: the
mean of one step each is the step along the mean. A round is one step of gradient descent, so it takes many more rounds
than FedAvg; the training settings `epochs`, `batch_size` and `momentum` have no part in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pflcli.fl.params import Mean, Params
from pflcli.fl.run import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "FedAvg, baseline"
YEAR = 2017

State = dict[str, Params]


@dataclass(frozen=True)
class Config:
    """No options beyond the training settings."""


def setup(run: Run) -> State:
    """Return the common initial model."""
    return {"global": run.start()}


def train_round(run: Run, state: State, t: int) -> State:
    """Send the global model to a cohort, take a step along the mean of its gradients."""
    cohort, start = run.cohort(t), state["global"]
    run.send("down", start, copies=len(cohort))
    whole = int(run.federation.sizes("train").max())
    mean = Mean()
    for part in run.local_sgd(cohort, start, t=t, epochs=1, batch_size=whole, momentum=0.0):
        mean.add(part.params, part.weights)
    run.send("up", start, copies=len(cohort))
    return {"global": mean.value()}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Answer with the global model for every client."""
    return run.predictor(clients, state["global"])
