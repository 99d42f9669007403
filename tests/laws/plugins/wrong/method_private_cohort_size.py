"""FedAvg whose server moves further in rounds with more clients.

The step is the share of the participants that uploaded, which tells whether a client was there.

Breaks: differential-privacy-bounds-each-client
"""

from __future__ import annotations

from dataclasses import dataclass

KIND = "server"
NEEDS = ()
PAPER = "FedAvg by attendance"
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
    rate = len(cohort) / len(run.federation.participants)
    return {"global": {name: value + rate * (mean[name] - value) for name, value in start.items()}}


def personalize(run, state, clients):
    return run.predictor(clients, state["global"])
