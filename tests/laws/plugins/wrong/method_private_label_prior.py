"""FedAvg that starts from the frequencies of the classes over all clients.

The bias of the head starts at the logarithm of these frequencies, which the server reads from the labels and sends to
everybody before the first mean.

Breaks: differential-privacy-bounds-each-client
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

KIND = "server"
NEEDS = ()
PAPER = "FedAvg with a prior"
YEAR = 2026


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run):
    labels = run.federation.labels_of(run.federation.participants, "train")
    counts = np.bincount(labels, minlength=run.federation.classes)
    start = run.initial_model()
    start["head.bias"] = torch.from_numpy(np.log((counts + 1) / (counts.sum() + 1))).to(start["head.bias"])
    return {"global": start}


def train_round(run, state, t):
    cohort = run.cohort(t)
    start = run.download(state["global"], cohort)
    return {"global": run.average(run.local_sgd(cohort, start, t=t), start)}


def personalize(run, state, clients):
    return run.predictor(clients, state["global"])
