"""FedSGD: one gradient from each client of a cohort, over all its samples or a minibatch, then one step at the server.

McMahan et al. (2017), https://arxiv.org/abs/1602.05629, section 2: w <- w - lr sum_i p_i grad F_i(w), where p_i is the
client's share of the samples of the cohort. It is computed as FedAvg with one local epoch of one batch, because the
mean of one step of each client is the step along the mean gradient. A round is a single step of gradient descent, so
that many more rounds are needed than with FedAvg. The training settings `epochs`, `steps` and `momentum` have no
effect.

`batch_size` has an effect only with ``batch=minibatch``: the gradient is then that of one minibatch, drawn in each
round. Gao et al. (2023, https://doi.org/10.1145/3591362, section 6.2), who average after every iteration, compare in
this way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pflcli.method import Params, Predictor, Run

KIND = "server"
NEEDS = ()
IGNORES = ("epochs", "steps", "momentum")
PAPER = "FedSGD"
YEAR = 2017
TASKS = ("any",)

State = dict[str, Params]


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    batch: Literal["full", "minibatch"] = "full"
    """compute a client's gradient over all its samples, or over one minibatch of --batch-size, drawn
    in each round"""


def setup(run: Run) -> State:
    """Return the common initial model."""
    return {"global": run.initial_model()}


def train_round(run: Run, state: State, t: int) -> State:
    """Send the global model to a cohort, take a step along the mean of its gradients."""
    cohort = run.cohort(t)
    start = run.download(state["global"], cohort)
    all_samples, is_minibatch = int(run.federation.sizes("train").max()), run.cfg.batch == "minibatch"
    size = run.settings.batch_size if is_minibatch else all_samples
    batches = 1 if is_minibatch else None
    step = run.local_sgd(cohort, start, t=t, epochs=1, batch_size=size, momentum=0.0, batches=batches)
    return {"global": run.average(step, start)}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with the global model for every client."""
    return run.predictor(clients, state["global"])
