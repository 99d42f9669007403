"""FedAvg whose server adds the sum of all updates so far to the model, without noise, in every fifth round.

Breaks: differential-privacy-bounds-each-client
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

KIND = "server"
NEEDS = ()
PAPER = "FedAvg with periodic correction"
YEAR = 2026


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run):
    start = run.initial_model()
    return {"global": start, "sum": {name: torch.zeros_like(value) for name, value in start.items()}}


def train_round(run, state, t):
    cohort = run.cohort(t)
    start = run.download(state["global"], cohort)
    mean, total = run.averaging(start), state["sum"]
    for part in run.local_sgd(cohort, start, t=t):
        mean.add(part.params, part.weights, part.clients)
        total = {name: old + (part.params[name] - start[name]).sum(dim=0) for name, old in total.items()}
    model = mean.value()
    if t % 5 == 4:
        model = {name: value + 0.01 * total[name] for name, value in model.items()}
    return {"global": model, "sum": total}


def personalize(run, state, clients):
    return run.predictor(clients, state["global"])
