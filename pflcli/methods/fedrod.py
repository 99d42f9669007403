"""FedRoD: a generic model trained with a balanced loss, and a personal head on top of it.

Chen & Chao (2022), "On Bridging Generic and Personalized Federated Learning for Image Classification",
https://arxiv.org/abs/2107.00778, Algorithm 1, with linear personalized heads (the hypernetwork is left out). z is the
representation, G the generic head and P the personalized head.

In a round, each minibatch moves body and G along the gradient of the balanced softmax (Ren et al., 2020,
https://arxiv.org/abs/2007.10740): the cross-entropy of G(z) + gamma log n_c, where n_c is the number of the client's
training samples of class c. It moves P along the gradient of the cross-entropy of G(z) + P(z), from which neither the
body nor G learns. Body and G are averaged as in FedAvg; P never leaves its client.

A client predicts with G(z) + P(z). The paper leaves three details open. Here a class without samples counts as 1e-12
samples, so that the balanced softmax of the client excludes it. P starts at zero, where the generic model predicts. A
client that never took part trains only P, with the last generic model, when it personalizes. Predictions use training
samples only.
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

from pflcli.method import Predictor, Run, Stacked, StackedBatch, parameters
from pflcli.methods.parts.class_counts import training_counts

KIND = "server"
NEEDS = ()
PERSONAL_MODELS = "heads"
PAPER = "FedRoD"
YEAR = 2022

State = dict[str, Any]

_OWN = "own:"
_ABSENT_COUNT = 1e-12
"""Number of samples for which a class counts if the client has none."""


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    gamma: Annotated[float, Ge(0)] = 1.0
    """raise class counts to this power in the balanced softmax; 0 trains the generic model as FedAvg does"""
    newcomer_epochs: Annotated[int, Ge(0)] = 5
    """train the own heads of clients that never took part for this many local epochs when they personalize; 0
    keeps them zero"""


def setup(run: Run) -> State:
    """Return the common initial model, and own heads of zeros."""
    start = run.initial_model()
    zeros = {name: torch.zeros_like(value) for name, value in parameters.part(start, "head.").items()}
    return {"global": start, "heads": run.table(zeros)}


def train_round(run: Run, state: State, t: int) -> State:
    """Train the generic model and the own heads of a cohort together, average the former."""
    cohort, heads = run.cohort(t), state["heads"]
    start = run.download(state["global"], cohort)
    mean = run.averaging(start)
    for ids in run.client_chunks(cohort):
        both = {**parameters.repeat(start, len(ids)), **_add_prefix(heads[ids])}
        plan: dict[str, Any] = {"loss": _losses, "clips_apart": _OWN}
        for part in run.local_sgd(ids, both, t=t, own={"offsets": _offsets(run, ids)}, **plan):
            heads[part.clients] = _select_own(part.params)
            mean.add(part.params, part.weights, part.clients)
    return {"global": mean.value(), "heads": heads}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with the sum of the generic and the client's own logits; as heads are linear, this is one head."""
    start, heads = state["global"], state["heads"]
    own = run.adapt(
        heads,
        clients,
        {**start, **_add_prefix(heads.default)},
        epochs=run.cfg.newcomer_epochs,
        prefix=_OWN,
        loss=_losses,
        own={"offsets": _offsets(run, clients)},
        trainable=_OWN,
        frozen_norm=True,
    )
    shared = parameters.repeat(start, len(clients))
    return run.predictor(clients, {**shared, **{name: shared[name] + value for name, value in own.items()}})


def _add_prefix(heads: Stacked) -> Stacked:
    return {_OWN + name: value for name, value in heads.items()}


def _select_own(params: Stacked) -> Stacked:
    return parameters.unprefixed(params, _OWN)


def _offsets(run: Run, clients: NDArray[np.int64]) -> Tensor:
    """Return gamma log n_c of each client and class, (m, C)."""
    counts = np.maximum(training_counts(run, clients), _ABSENT_COUNT)
    return torch.from_numpy(run.cfg.gamma * np.log(counts)).float().to(run.federation.y.device)


def _losses(logits: Tensor, z: Tensor, params: Mapping[str, Tensor], batch: StackedBatch) -> Tensor:
    """Return the balanced loss of the generic model plus the loss of both heads, which moves the own one alone."""
    weight = params[_OWN + "head.weight"]
    generic = logits.detach()
    if _OWN + "head.bias" in params:
        generic = generic + params[_OWN + "head.bias"][:, None]
    personal = torch.baddbmm(generic, z.detach()[..., : weight.shape[2]], weight.mT)
    balanced = batch.loss(logits + batch.own["offsets"][:, None])
    return balanced + batch.loss(personal)
