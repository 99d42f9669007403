"""FedDyn: clients' losses get a linear and a quadratic term, by which their optima agree with the global one.

Acar et al. (2021), "Federated Learning Based on Dynamic Regularization", ICLR, https://arxiv.org/abs/2111.04263,
Algorithm 1. In a round, client k trains from the server's model theta with the loss

    L_k(theta_k) - <g_k, theta_k> + alpha/2 |theta_k - theta|^2,

and then sets its memory g_k to g_k - alpha (theta_k - theta), which is the gradient of L_k at theta_k if it has found
the minimum. Both terms together are alpha/2 |theta_k - (theta + g_k / alpha)|^2 but for a constant, so that a client is
pulled to theta + g_k / alpha, as in FedProx; it keeps g_k / alpha, from which each round subtracts theta_k - theta.

The server's h becomes h - alpha/m times the sum of theta_k - theta over the cohort, where m clients can
take part, and its model the mean of the theta_k minus h / alpha. Memories and h start at zero. Means are weighted by
samples, as in FedAvg; if clients have equal numbers of samples, they are those of the paper. If not, the authors' code,
https://github.com/alpemreacar/FedDyn, weighs otherwise: its means are plain, and a client with c times the mean number
of samples trains with alpha / c. A round sends what FedAvg sends; memories never leave their clients.

Clients predict with the server's model. The paper's Theorem 1 is about the mean of the cohort's models, and the
authors' code plots the mean of the last models of all clients; on 60 writers the former is as accurate as the server's
model.

h is a momentum of the server, which falls by a factor of about 1 - alpha K lr per round of K local steps with learning
rate lr, so that the server moves by up to 1 / alpha gradients per round. If alpha is far below 1 / (K lr), the model
overshoots and may diverge. The paper takes alpha of 0.1, 0.01 and 0.001, with 5 epochs at a rate of 0.1; the authors'
example has 0.01. They also clip gradients to a norm of 10 (``--clip-gradients``). With weight decay, memories contain
the decay besides the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Gt
from numpy.typing import NDArray

from pflcli.method import Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "FedDyn"
YEAR = 2021
TASKS = ("any",)
SERVES = ("h",)
GRID = {"alpha": (0.01, 0.1, 1.0)}

State = dict[str, Any]


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    alpha: Annotated[float, Gt(0)] = 0.1
    """weigh the quadratic term of clients' losses by this (the paper: 0.1, 0.01 or 0.001)"""


def setup(run: Run) -> State:
    """Return the common initial model, and memories of zero: the server's h, and g_k / alpha of every client."""
    start = run.initial_model()
    zero = {name: torch.zeros_like(start[name]) for name in run.engine.parameters}
    return {"global": start, "h": zero, "memories": run.table(zero)}


def train_round(run: Run, state: State, t: int) -> State:
    """Train a cohort with the dynamic regularizer, correct the mean of what comes back."""
    cohort, memories, alpha = run.cohort(t), state["memories"], run.cfg.alpha
    start = run.download(state["global"], cohort)
    mean = run.averaging(start)
    for ids in run.client_chunks(cohort):
        anchors = {name: value.add_(start[name]) for name, value in memories[ids].items()}
        (part,) = run.local_sgd(ids, start, t=t, prox=(anchors, alpha))
        memories[ids] = {name: value.sub_(part.params[name]) for name, value in anchors.items()}
        mean.add(part.params, part.weights, part.clients)
    value, share = mean.value(), run.share_of_samples(cohort)
    h = {name: old - alpha * share * (value[name] - start[name]) for name, old in state["h"].items()}
    model = {**value, **{name: value[name] - old / alpha for name, old in h.items()}}
    return {"global": model, "h": h, "memories": memories}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with the global model for every client."""
    return run.predictor(clients, state["global"])
