"""FedAvg whose server adds the median of the uploads to their mean.

The median is taken of the models as they arrive: it is neither clipped nor noisy.

Breaks: differential-privacy-bounds-each-client
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

KIND = "server"
NEEDS = ()
PAPER = "FedAvg with a median"
YEAR = 2026


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run):
    return {"global": run.initial_model()}


def train_round(run, state, t):
    cohort = run.cohort(t)
    start = run.download(state["global"], cohort)
    mean, received = run.averaging(start), []
    for part in run.local_sgd(cohort, start, t=t):
        mean.add(part.params, part.weights, part.clients)
        received.append(part.params)
    value = mean.value()
    if not received:
        return {"global": value}
    median = {name: torch.cat([each[name] for each in received]).median(dim=0).values for name in start}
    return {"global": {name: (value[name] + median[name]) / 2 for name in value}}


def personalize(run, state, clients):
    return run.predictor(clients, state["global"])
