"""FedAS: FedPer whose clients align the downloaded body to their own last one, averaged by Fisher information.

Yang, Huang & Ye (2024), "FedAS: Bridging Inconsistency in Personalized Federated Learning", CVPR,
https://openaccess.thecvf.com/content/CVPR2024/html/Yang_FedAS_Bridging_Inconsistency_in_Personalized_Federated_Learning_CVPR_2024_paper.html.
Formulas are those of the authors' code, https://github.com/xiyuanyang45/FedAS. In a round, a client downloads the body.

- Parameter alignment: it computes the mean feature p_k of each class of its training samples by the body that it
  trained when it last took part, and trains the downloaded body for `align_epochs` to give these means: the loss of a
  minibatch is the sum over its classes k of the mean of (z - p_k)^2 over samples of this class and dimensions.
- It trains the aligned body and its own head together, and uploads the body.
- Client synchronization: the server averages bodies with weights proportional to the trace of the Fisher information of
  each client's trained model: the sum over minibatches of the squared norm of the gradient of the mean log-likelihood
  by all parameters, in evaluation mode. This number is the weight that a client sends with its body.

A client predicts with the body and the head that it trained when it last took part. In its first round it has nothing
to align to. A client that never took part trains the last body and the initial head for `newcomer_epochs` when it
personalizes. Predictions use training samples only.

The authors' code aligns in a client's first round too, to means by the initial model. It also aligns the server's model
in place, so that each client of a round starts from what those before it have aligned; here every client starts from
the model that it downloaded. With differential privacy all clients have the same weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor

from pflcli.method import ModelTable, Params, Predictor, Run, Stacked, StackedBatch, StackedNetwork, parameters
from pflcli.methods.parts.class_means import class_means

KIND = "server"
NEEDS = ()
DIVIDES = True
PERSONAL_MODELS = "models"
PAPER = "FedAS"
YEAR = 2024
GRID = {"align_lr": (0.01, 0.1), "align_epochs": (1, 5)}

State = dict[str, Any]

_LEAST_TRACE = 1e-30
"""Least weight of a client; a model that is always right has no gradient."""


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    align_epochs: Annotated[int, Ge(0)] = 1
    """align the downloaded body for this many local epochs (the authors' code: 1); 0 does not"""
    align_lr: Annotated[float, Ge(0)] = 0.01
    """align with this learning rate (the authors' code: 0.01, twice that of training); 0 uses that of the round"""
    synchronize: bool = True
    """average bodies by Fisher information; false weights them by samples, which with align_epochs=0 is FedPer"""
    newcomer_epochs: Annotated[int, Ge(0)] = 5
    """train the models of clients that never took part for this many local epochs when they personalize"""


def setup(run: Run) -> State:
    """Return the common initial body, and every client's model."""
    start = run.initial_model()
    return {"body": parameters.part(start, "body."), "models": run.table(_divided(start))}


def train_round(run: Run, state: State, t: int) -> State:
    """Align the body to each client of a cohort, train it with the client's head, and average bodies."""
    cohort, models = run.cohort(t), state["models"]
    body = run.download(state["body"], cohort)
    mean = run.averaging(body)
    for ids in run.client_chunks(cohort):
        (part,) = run.local_sgd(ids, _align(run, models, ids, body, t), t=t)
        models[part.clients] = part.params
        weights = _fisher_traces(run, ids, part.params, t) if run.cfg.synchronize else part.weights
        mean.add(part.params, weights, part.clients)
    return {"body": mean.value(), "models": models}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with each client's own model."""
    models = state["models"]
    start = {**models.default, **state["body"]}
    return run.predictor(clients, run.adapt(models, clients, start, epochs=run.cfg.newcomer_epochs))


def _divided(start: Params) -> Params:
    """Return a model with its body first; raises UsageError without one."""
    return {**parameters.part(start, "body."), **parameters.part(start, "head.")}


def _align(run: Run, models: ModelTable, ids: NDArray[np.int64], body: Params, t: int) -> Stacked:
    """Return the downloaded body, aligned to the clients' own ones, with their heads (m, ...)."""
    own, cfg = models[ids], run.cfg
    start = {**own, **{name: value.clone() for name, value in parameters.repeat(body, len(ids)).items()}}
    rows = np.flatnonzero(~np.isin(ids, models.unwritten(ids)))
    if not cfg.align_epochs or not len(rows):
        return start
    means, _ = class_means(run, ids[rows], parameters.take(own, rows))
    plan: dict[str, Any] = {"loss": _losses, "own": {"means": means}, "trainable": "body."}
    rate, begin = cfg.align_lr or None, parameters.take(start, rows)
    for part in run.local_sgd(ids[rows], begin, t=t, name="align", epochs=cfg.align_epochs, lr=rate, **plan):
        parameters.write_rows(start, np.searchsorted(ids, part.clients), part.params)
    return start


def _losses(logits: Tensor, z: Tensor, params: Mapping[str, Tensor], batch: StackedBatch) -> Tensor:
    """Return the sum over classes of the mean squared distance (a,) of features to the mean of their class."""
    means, is_sample = batch.own["means"], (batch.weight > 0).to(z)
    clients = torch.arange(len(z), device=z.device)[:, None]
    apart = (z - means[clients, batch.y]).square().mean(dim=2)  # (a, n)
    counts = is_sample.new_zeros(means.shape[:2]).scatter_add(1, batch.y, is_sample)
    return (apart * is_sample / counts.gather(1, batch.y).clamp(min=1)).sum(dim=1)


def _fisher_traces(run: Run, ids: NDArray[np.int64], models: Stacked, t: int) -> NDArray[np.float64]:
    """Return the trace of the Fisher information of each client's model (m,)."""
    zero = {"trace": torch.zeros(len(ids), device=run.federation.y.device)}
    plan: dict[str, Any] = {"name": "fisher", "epochs": 1, "lr": 1.0, "gradient": _squared_norms, "frozen_norm": True}
    (part,) = run.descend(ids, zero, t=t, own=models, **plan)
    return np.asarray(np.maximum(part.params["trace"].double().cpu().numpy(), _LEAST_TRACE))


def _squared_norms(network: StackedNetwork, params: Stacked, batch: StackedBatch) -> tuple[Tensor, Stacked]:
    """Return the losses, and minus the squared norms of their gradients, which a step with rate 1 adds to the trace."""
    losses, grads = network.gradient(batch.own, batch, network.parameters)
    return losses, {
        "trace": -torch.stack([value.square().flatten(1).sum(dim=1) for value in grads.values()]).sum(dim=0)
    }
