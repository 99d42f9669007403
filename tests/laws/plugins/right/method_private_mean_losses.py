"""FedAvg whose clients upload their losses with their models, and whose server takes smaller steps by them.

The loss is part of the upload of which the server takes one noisy mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

KIND = "server"
NEEDS = ()
PAPER = "FedAvg by noisy loss"
YEAR = 2026


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run):
    return {"global": run.initial_model()}


def train_round(run, state, t):
    cohort = run.cohort(t)
    start = run.download(state["global"], cohort)
    mean = run.averaging({**start, "loss": torch.zeros(())})
    for part in run.local_sgd(cohort, start, t=t):
        loss = torch.from_numpy(run.client_losses(part.clients, start, "train")).float()
        mean.add({**part.params, "loss": loss}, part.weights, part.clients)
    value = mean.value()
    rate = 1 / (1 + float(value["loss"].clamp(0, 16)))
    return {"global": {name: old + rate * (value[name] - old) for name, old in start.items()}}


def personalize(run, state, clients):
    return run.predictor(clients, state["global"])
