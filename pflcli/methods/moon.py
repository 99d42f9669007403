"""MOON: FedAvg whose clients pull representations to those of the global model, and away from those of their last one.

Li, He & Song (2021), "Model-Contrastive Federated Learning", CVPR, https://arxiv.org/abs/2103.16257. A client minimizes
the cross-entropy plus mu times the model-contrastive loss (Algorithm 1, lines 13 to 18)::

    -log(exp(cos(z, z_glob) / tau) / (exp(cos(z, z_glob) / tau) + exp(cos(z, z_prev) / tau)))

where z, z_glob and z_prev are the representations of a sample by the model that is trained, by the global model that
the client downloaded, and by the model that the client trained when it last took part. Gradients flow through z alone.
A client that takes part for the first time compares with the common initial model; in the first round both models are
the same, and the loss moves nothing. The server averages as FedAvg does. A round sends what FedAvg sends; a client
keeps its last model, by which nobody predicts.

The representation is the output of the model's body. The paper puts a projection head of two layers between encoder
and output layer, and compares its outputs; to do the same, use a model with these layers. With batch normalization all
three models normalize by the minibatch. The paper chooses mu of 0.1, 1, 5 and 10 for each dataset (1 or 5 won); the
authors' code has 1. A step takes two more forward passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pflcli.method import Pass, Predictor, Run, Stacked, StackedBatch, StackedNetwork, parameters, repeat

KIND = "server"
NEEDS = ()
PAPER = "MOON"
YEAR = 2021
TASKS = ("any",)
NO_EFFECT = "mu is 0, or the model is all head"
GRID = {"mu": (0.1, 1.0, 5.0, 10.0)}

State = dict[str, Any]

_PREVIOUS = "previous:"


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    mu: Annotated[float, Ge(0)] = 1.0
    """add the contrastive loss with this weight; 0 is FedAvg; the paper tries 0.1, 1, 5 and 10"""
    temperature: Annotated[float, Gt(0)] = 0.5
    """divide cosines by this temperature (the paper's tau = 0.5)"""


def setup(run: Run) -> State:
    """Return the common initial model, for the server and as every client's last one."""
    start = run.initial_model()
    return {"global": start, "previous": run.table(start)}


def train_round(run: Run, state: State, t: int) -> State:
    """Train a cohort with the contrastive loss, average what comes back."""
    cohort, previous = run.cohort(t), state["previous"]
    start = run.download(state["global"], cohort)
    mean = run.averaging(start)
    for ids in run.client_chunks(cohort):
        for part in run.local_sgd(ids, repeat(start, len(ids)), t=t, **_plan(run, start, previous[ids])):
            previous[part.clients] = part.params
            mean.add(part.params, part.weights, part.clients)
    return {"global": mean.value(), "previous": previous}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with the global model for every client."""
    return run.predictor(clients, state["global"])


def _plan(run: Run, start: Mapping[str, Tensor], previous: Stacked) -> dict[str, Any]:
    """Return how clients train: options of ``Run.local_sgd``."""
    if not run.cfg.mu:
        return {}
    own = {_PREVIOUS + name: value for name, value in previous.items()}
    rule = partial(_passes, mu=run.cfg.mu, temperature=run.cfg.temperature)
    return {"pass_rule": rule, "own": own, "shared": start, "passes": 5 / 3}


def _passes(
    network: StackedNetwork, params: Stacked, batch: StackedBatch, *, mu: float, temperature: float
) -> list[Pass]:
    """Return the pass of the trained models, with the representations by the fixed ones as constants of its batch."""
    shared = repeat(batch.shared, len(batch.x))
    fixed = {"near": shared, "far": parameters.unprefixed(batch.own, _PREVIOUS)}
    z = {}
    for name, models in fixed.items():
        # A forward pass changes the statistics of batch normalization in place.
        at = {key: value if key in network.parameters else value.clone() for key, value in models.items()}
        z[name] = network.forward(at, batch.x, batch.weight).z
    return [Pass(params, replace(batch, own=z), partial(_losses, mu=mu, temperature=temperature))]


def _losses(
    logits: Tensor, z: Tensor, params: Mapping[str, Tensor], batch: StackedBatch, *, mu: float, temperature: float
) -> Tensor:
    """Return the loss of the task plus mu times the model-contrastive loss."""
    near, far = (functional.cosine_similarity(z, batch.own[name], dim=2) for name in ("near", "far"))  # (a, n)
    contrast = functional.softplus((far - near) / temperature)  # -log(exp(near) / (exp(near) + exp(far)))
    return batch.loss(logits) + mu * batch.mean(contrast)
