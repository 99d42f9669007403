"""FedAvg that starts from the frequencies of the classes, which clients upload before the first round.

The counts are neither clipped nor noisy, and nothing in the file declares them.

Breaks: differential-privacy-bounds-each-client
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

KIND = "server"
NEEDS = ()
PAPER = "FedAvg with counts"
YEAR = 2026


@dataclass(frozen=True)
class Config:
    """No options."""


def setup(run):
    start, counts = run.initial_model(), np.ones(run.federation.classes)
    for client in run.federation.participants:
        own = np.bincount(run.federation.labels_of(np.asarray([client]), "train"), minlength=run.federation.classes)
        run.send("up", {"counts": torch.from_numpy(own)})
        counts += own
    start["head.bias"] = torch.from_numpy(np.log(counts / counts.sum())).to(start["head.bias"])
    return {"global": start}


def train_round(run, state, t):
    cohort = run.cohort(t)
    start = run.download(state["global"], cohort)
    return {"global": run.average(run.local_sgd(cohort, start, t=t), start)}


def personalize(run, state, clients):
    return run.predictor(clients, state["global"])
