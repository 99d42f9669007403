"""FedAvg whose last round also trains the head of the global model on validation samples.

The server trains on the clients' samples, and publishes the result without noise.

Breaks: differential-privacy-bounds-each-client
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

KIND = "server"
NEEDS = ()
PAPER = "Calibrated FedAvg"
YEAR = 2026


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run):
    return {"global": run.initial_model()}


def train_round(run, state, t):
    cohort = run.cohort(t)
    start = run.download(state["global"], cohort)
    mean = run.average(run.local_sgd(cohort, start, t=t), start)
    if t == run.settings.rounds - 1:
        rows = np.concatenate(
            [run.federation.rows(int(client), "validation") for client in run.federation.participants]
        )
        mean = run.server_sgd(rows, mean, t=t, trainable="head.")
    return {"global": mean}


def personalize(run, state, clients):
    return run.predictor(clients, state["global"])
