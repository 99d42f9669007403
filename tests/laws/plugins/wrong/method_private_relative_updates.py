"""FedAvg whose clients divide their updates by the largest one of the cohort.

One client with a large update makes all other uploads smaller, so that it moves the sum by more than its clip.

Breaks: differential-privacy-bounds-each-client
"""

from __future__ import annotations

from dataclasses import dataclass

KIND = "server"
NEEDS = ()
PAPER = "Relative FedAvg"
YEAR = 2026


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run):
    return {"global": run.initial_model()}


def train_round(run, state, t):
    cohort = run.cohort(t)
    start = run.download(state["global"], cohort)
    parts = list(run.local_sgd(cohort, start, t=t))
    squares = [sum((v - start[n]).square().flatten(1).sum(dim=1) for n, v in part.params.items()) for part in parts]
    scale = 0.1 / max((float(square.max()) for square in squares if len(square)), default=1.0) ** 0.5
    mean = run.averaging(start)
    for part in parts:
        shrunk = {name: start[name] + scale * (value - start[name]) for name, value in part.params.items()}
        mean.add(shrunk, part.weights, part.clients)
    return {"global": mean.value()}


def personalize(run, state, clients):
    return run.predictor(clients, state["global"])
