"""FedProto: clients exchange the mean representation of each class instead of models.

Tan et al. (2022), "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI,
https://arxiv.org/abs/2105.00243, Algorithm 1. Every client has a model of its own.

In a round, the cohort downloads the global prototypes, one vector for each class. Each client trains its model on the
cross-entropy plus lambda times the mean over dimensions of (z - p_y)^2 (Eq. 7), where z is the representation of a
sample and p_y the prototype of its class, if there is one. It uploads the mean representation of each class of its
training samples (Eq. 3). The server takes their means, weighted by samples (Eq. 6). The prototype of a class without
samples in the cohort does not change. In the first round there are no prototypes, and clients train alone.

A client predicts with the nearest global prototype, as in the paper, by the softmax of minus half the squared
distances; or, with `answer=head`, with the head of its own model. Models start from the common initial model, so that
representations can be compared. All have the same architecture here, although the algorithm only needs representations
of the same size. A client that never took part trains a model with the same pull towards the last prototypes when it
personalizes. Predictions use training samples only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor

from pflcli.method import Params, Predictor, Run, StackedBatch
from pflcli.methods.parts.class_means import class_means

KIND = "server"
NEEDS = ()
PERSONAL_MODELS = "models"
SENDS_MORE = "a mean per class"
PAPER = "FedProto"
YEAR = 2022

State = dict[str, Any]


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    lam: Annotated[float, Ge(0)] = 1.0
    """pull representations to the prototypes with this weight (lambda) in training; 0 with answer=head is
    training alone"""
    answer: Literal["prototype", "head"] = "prototype"
    """predict by the nearest global prototype, or by the head of the client's own model"""
    newcomer_epochs: Annotated[int, Ge(0)] = 20
    """train the models of clients that never took part for this many local epochs when they personalize"""


def setup(run: Run) -> State:
    """Return the common initial model for every client, and no prototypes."""
    start, classes = run.initial_model(), run.federation.classes
    size, device = run.representation_size, run.federation.y.device
    none = {"mean": torch.zeros(classes, size, device=device), "known": torch.zeros(classes, device=device)}
    return {"models": run.table(start), "prototypes": none}


def train_round(run: Run, state: State, t: int) -> State:
    """Train the models of a cohort near the prototypes, and average the prototypes that they send."""
    cohort, models, prototypes = run.cohort(t), state["models"], state["prototypes"]
    sent = {"prototypes": prototypes["mean"][prototypes["known"] > 0]}
    run.send("down", sent, copies=len(run.everyone(cohort)))
    prototypes = run.download(prototypes, cohort, counted=False)
    # One mean for each class, to which the clients that have it are added.
    means = [run.averaging({"prototype": value}) for value in prototypes["mean"]]
    for part in run.local_sgd(cohort, models, t=t, **_plan(run, prototypes)):
        models[part.clients] = part.params
        own, n = class_means(run, part.clients, part.params)
        for c, mean in enumerate(means):
            if (has := np.flatnonzero(n[:, c])).size:
                mean.add({"prototype": own[has, c]}, n[has, c], part.clients[has])
    known, rows = prototypes["known"].clone(), prototypes["mean"].clone()
    for c, mean in enumerate(means):
        if mean.is_defined:
            known[c], rows[c] = 1, mean.value()["prototype"]
    return {"models": models, "prototypes": {"mean": rows, "known": known}}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict by the global prototypes in the space of each client's model; without prototypes, by its head."""
    models, prototypes, cfg = state["models"], state["prototypes"], run.cfg
    plan = _plan(run, prototypes)
    own = run.adapt(models, clients, models.default, epochs=cfg.newcomer_epochs, **plan)
    if cfg.answer == "head" or not prototypes["known"].any():
        return run.predictor(clients, own)

    def answer(split: str) -> dict[str, NDArray[np.float32]]:
        embedded = [z for _, z in run.engine.outputs_each(clients, own, split, features=True)]
        return {"p": np.concatenate([run.task.predict(_closeness(z, prototypes)) for z in embedded])}

    return Predictor(answer, run.predicted_splits)


def _closeness(z: Tensor, prototypes: Params) -> Tensor:
    """Return minus half the squared distance of representations (n, d) to each prototype, (n, C); -inf to none."""
    apart = -torch.cdist(z.double(), prototypes["mean"].double()).square() / 2
    # Representations that overflow are near to none.
    apart = torch.nan_to_num(apart, nan=-1e300, neginf=-1e300)
    return torch.where(prototypes["known"] > 0, apart, -torch.inf)


def _plan(run: Run, prototypes: Params) -> dict[str, Any]:
    """Return how clients train: options of ``Run.local_sgd``."""
    if not run.cfg.lam or not prototypes["known"].any():
        return {}
    return {"loss": _losses, "shared": {**prototypes, "lam": prototypes["mean"].new_tensor(run.cfg.lam)}}


def _losses(logits: Tensor, z: Tensor, params: Mapping[str, Tensor], batch: StackedBatch) -> Tensor:
    """Return the cross-entropy plus the distance of representations to the prototypes of their classes."""
    shared = batch.shared
    apart = (z - shared["mean"][batch.y]).square().mean(dim=2) * shared["known"][batch.y]  # (a, n)
    return batch.loss(logits) + shared["lam"] * batch.mean(apart)
