"""Pooled: one network, trained on the training samples of all clients together, as if they could be shared.

The centralized baseline of McMahan et al. (2017), https://arxiv.org/abs/1602.05629. A reference rather than a federated
method: it says what the data are worth in one place, with one model for all. The network takes as many steps as all
clients of FedAvg together in expectation, one after the other, on minibatches of the same size, which are drawn from
the samples of all clients. The learning rate follows the same schedule. The bytes sent are those of all samples, and of
the trained network to each client. Clients that join later predict with the same network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pflcli.method import Params, Predictor, Run

KIND = "server"
NEEDS = ()
PAPER = "Pooled"
YEAR = 2017
TASKS = ("any",)
SENDS_MORE = "samples"
REFERENCE = True

State = dict[str, Params]


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run: Run) -> State:
    """Train the network on all training samples."""
    plan, clients = run.settings, run.federation.participants
    batches = np.ceil(run.federation.sizes("train")[clients] / plan.batch_size)
    in_a_round = len(clients) * plan.steps if plan.steps else plan.epochs * batches.sum()
    steps = math.ceil(plan.rounds * plan.participation * in_a_round)
    rows = run.federation.rows_of(clients, "train")
    run.send("up", {"x": run.federation.samples(rows), "y": run.federation.y[rows]})
    model = run.initial_model()
    if steps:
        rates = [plan.lr_at(step * plan.rounds // steps) for step in range(steps)]
        model = run.server_sgd(rows, model, t="pooled", epochs=0, steps=steps, lr=rates.__getitem__)
    run.send("down", model, copies=len(clients))
    return {"global": model}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with the same network for every client."""
    return run.predictor(clients, state["global"])
