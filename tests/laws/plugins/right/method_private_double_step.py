"""FedAvg whose server moves twice as far as the mean of the uploads.

The step is a function of the noisy mean, so that differential privacy still holds.
"""

from __future__ import annotations

from dataclasses import dataclass

KIND = "server"
NEEDS = ()
PAPER = "FedAvg with large steps"
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
    return {"global": {name: value + 2 * (mean[name] - value) for name, value in start.items()}}


def personalize(run, state, clients):
    return run.predictor(clients, state["global"])
