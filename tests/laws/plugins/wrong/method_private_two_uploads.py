"""FedAvg whose clients upload the models of two local trainings to the same mean.

Each client then moves the sum by up to twice the clip, while the noise hides one clip.

Breaks: differential-privacy-bounds-each-client
"""

from __future__ import annotations

from dataclasses import dataclass

KIND = "server"
NEEDS = ()
PAPER = "FedAvg twice"
YEAR = 2026


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run):
    return {"global": run.initial_model()}


def train_round(run, state, t):
    cohort = run.cohort(t)
    start = run.download(state["global"], cohort)
    mean = run.averaging(start)
    for name in ("first", "second"):
        for part in run.local_sgd(cohort, start, t=t, name=name):
            mean.add(part.params, part.weights, part.clients)
    return {"global": mean.value()}


def personalize(run, state, clients):
    return run.predictor(clients, state["global"])
