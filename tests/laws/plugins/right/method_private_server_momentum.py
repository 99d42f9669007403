"""FedAvgM: the server adds up the means of the updates with a momentum.

Hsu et al. (2019), https://arxiv.org/abs/1909.06335, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

KIND = "server"
NEEDS = ()
PAPER = "FedAvgM"
YEAR = 2026


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run):
    start = run.initial_model()
    return {"global": start, "momentum": {name: torch.zeros_like(value) for name, value in start.items()}}


def train_round(run, state, t):
    cohort = run.cohort(t)
    start = run.download(state["global"], cohort)
    mean = run.average(run.local_sgd(cohort, start, t=t), start)
    momentum = {name: 0.9 * old + mean[name] - start[name] for name, old in state["momentum"].items()}
    return {"global": {name: value + momentum[name] for name, value in start.items()}, "momentum": momentum}


def personalize(run, state, clients):
    return run.predictor(clients, state["global"])
