"""FedDyn: clients' losses get a linear term, by which their optima agree with the global one.

Acar et al. (2021), https://arxiv.org/abs/2111.04263, Algorithm 1. The server's h follows from the mean of the uploads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt

from pflcli.core import parameters

KIND = "server"
NEEDS = ()
PAPER = "FedDyn"
YEAR = 2026


@dataclass(frozen=True)
class Config:
    """The option of the method."""

    alpha: Annotated[float, Gt(0)] = 0.1
    """weigh the linear and the quadratic term of the clients' losses by this"""


def setup(run):
    start = run.initial_model()
    zero = {name: torch.zeros_like(value) for name, value in start.items()}
    return {"global": start, "h": zero, "dual": run.table(zero)}


def train_round(run, state, t):
    cohort, dual, alpha = run.cohort(t), state["dual"], run.cfg.alpha
    start = run.download(state["global"], cohort)
    mean = run.averaging(start)

    for ids in run.client_chunks(cohort, 3 * parameters.size(start)):
        own = dual[ids]
        minus = {name: -value for name, value in own.items()}
        (part,) = run.local_sgd(ids, start, t=t, own=minus, adds_own=True, prox=(start, alpha))
        dual[ids] = {name: value - alpha * (part.params[name] - start[name]) for name, value in own.items()}
        mean.add(part.params, part.weights, part.clients)
    value, share = mean.value(), run.share_of_samples(cohort)
    h = {name: old - alpha * share * (value[name] - start[name]) for name, old in state["h"].items()}
    model = {name: new - h[name] / alpha for name, new in value.items()}
    return {"global": model, "h": h, "dual": dual}


def personalize(run, state, clients):
    return run.predictor(clients, state["global"])
