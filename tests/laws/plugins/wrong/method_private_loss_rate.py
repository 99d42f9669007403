"""FedAvg whose server takes smaller steps while the clients' training loss is large.

The step depends on the mean loss of the cohort, to which no noise is added.

Breaks: differential-privacy-bounds-each-client
"""

from __future__ import annotations

from dataclasses import dataclass

KIND = "server"
NEEDS = ()
PAPER = "FedAvg by loss"
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
    weight = sum(weight for _, weight in run.notes.losses)
    loss = sum(loss * weight for loss, weight in run.notes.losses) / weight if weight else 0.0
    return {"global": {name: value + (mean[name] - value) / (1 + loss) for name, value in start.items()}}


def personalize(run, state, clients):
    return run.predictor(clients, state["global"])
