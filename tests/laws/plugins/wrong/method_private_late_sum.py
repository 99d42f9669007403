"""FedAvg with a server that remembers the clients' updates and applies them two rounds later.

The sums wait in the state, so that the first two rounds send nothing but noisy means.

Breaks: differential-privacy-bounds-each-client
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

KIND = "server"
NEEDS = ()
PAPER = "FedAvg with a delay"
YEAR = 2026


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run):
    start = run.initial_model()
    zero = {name: torch.zeros_like(value) for name, value in start.items()}
    return {"global": start, "waiting": {"1": zero, "2": zero}}


def train_round(run, state, t):
    cohort = run.cohort(t)
    start = run.download(state["global"], cohort)
    mean = run.averaging(start)
    total = {name: torch.zeros_like(value) for name, value in start.items()}
    for part in run.local_sgd(cohort, start, t=t):
        mean.add(part.params, part.weights, part.clients)
        total = {name: old + (part.params[name] - start[name]).sum(dim=0) for name, old in total.items()}
    waiting = state["waiting"]
    model = {name: value + 0.01 * waiting["2"][name] for name, value in mean.value().items()}
    return {"global": model, "waiting": {"1": total, "2": waiting["1"]}}


def personalize(run, state, clients):
    return run.predictor(clients, state["global"])
