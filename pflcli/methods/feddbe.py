"""FedDBE: FedAvg in which each client stores its own shift of representations; the rest is pulled to a consensus.

Zhang et al. (2023), "Eliminating Domain Bias for Federated Learning in Representation Space", NeurIPS,
https://arxiv.org/abs/2311.14975, with FedAvg.

Before the rounds, every client trains the initial model once and uploads the mean of its representations. The mean of
these, weighted by samples, is the consensus c, which does not change. In a round, a client trains body, head and its
own memory m (PRBM), a vector that is added to each representation z before the head. The loss is the cross-entropy of
head(z + m) plus kappa times the mean over dimensions of 1/2 (z' - c)^2, where z' is the mean representation of the
minibatch (MR). Body and head are averaged as in FedAvg; m never leaves its client.

z' is the mean of one minibatch: the paper's running mean with a momentum of 1, which the authors use for their CNN.
Memories start at zero. If the head reads only a part of the representation, as in `lstm`, m is added to that part. A
client that never took part trains only its memory, with the last global model, when it personalizes. Predictions use
training samples only.
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

from pflcli.method import Params, Predictor, Run, Stacked, StackedBatch, TrainedClients, UsageError, parameters

KIND = "server"
NEEDS = ()
PERSONAL_MODELS = "memories"
KEEPS = ("consensus",)
SENDS_MORE = "mean representations before the rounds"
PAPER = "FedDBE"
YEAR = 2023
TASKS = ("any",)

State = dict[str, Any]

_MEMORY = "memory"
_WEIGHT, _BIAS = "head.weight", "head.bias"


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    kappa: Annotated[float, Ge(0)] = 1.0
    """pull mean representations to the consensus with this weight; 0 only trains the memories"""
    newcomer_epochs: Annotated[int, Ge(0)] = 5
    """train the memories of clients that never took part for this many local epochs when they personalize; 0
    keeps them zero"""


def setup(run: Run) -> State:
    """Let all clients train the initial model, send their mean representation and download the consensus of them."""
    start = run.initial_model()
    if {_WEIGHT, _BIAS} != set(parameters.part(start, "head.")):
        raise UsageError(f"feddbe needs a head that is a linear layer with a bias; that of {run.settings.model} is not")
    memory = start[_WEIGHT].new_zeros(start[_WEIGHT].shape[1])
    zero_mean = {"mean": start[_WEIGHT].new_zeros(run.representation_size)}
    able, mean = run.participants(), run.averaging(zero_mean)
    run.download(start, able)

    def represent(part: TrainedClients) -> Stacked:
        return {"mean": run.engine.represent(part.clients, part.params, "train")}

    for part in run.local_sgd(able, start, t=0, name="consensus", may_diverge=True, also_upload=represent):
        finite = np.flatnonzero(part.finite)
        if len(finite):
            mean.add({"mean": part.params["mean"][finite]}, part.weights[finite], part.clients[finite])
    consensus = run.download(mean.value() if mean.is_defined else zero_mean, able)
    return {"global": start, "consensus": consensus, "memories": run.table({_MEMORY: memory})}


def train_round(run: Run, state: State, t: int) -> State:
    """Train the global model and the memories of a cohort together, average the former."""
    cohort, memories = run.cohort(t), state["memories"]
    start = run.download(state["global"], cohort)
    mean = run.averaging(start)
    for ids in run.client_chunks(cohort):
        both = {**parameters.repeat(start, len(ids)), **memories[ids]}
        for part in run.local_sgd(ids, both, t=t, loss=_losses, shared=_shared(run, state)):
            memories[part.clients] = part.params
            mean.add(part.params, part.weights, part.clients)
    return {**state, "global": mean.value()}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with the global model, each client's memory being a part of the bias of its head."""
    start, memories = state["global"], state["memories"]
    own = run.adapt(
        memories,
        clients,
        {**start, **memories.default},
        epochs=run.cfg.newcomer_epochs,
        loss=_losses,
        shared=_shared(run, state),
        trainable=_MEMORY,
        frozen_norm=True,
    )
    bias = start[_BIAS] + own[_MEMORY] @ start[_WEIGHT].T
    return run.predictor(clients, {**parameters.repeat(start, len(clients)), _BIAS: bias})


def _shared(run: Run, state: State) -> Params:
    kappa = torch.tensor(run.cfg.kappa, device=run.federation.y.device)
    return {"consensus": state["consensus"]["mean"], "kappa": kappa}


def _losses(logits: Tensor, z: Tensor, params: Mapping[str, Tensor], batch: StackedBatch) -> Tensor:
    """Return the loss of the head on representations with the memory, plus the pull of their mean without it."""
    with_memory = logits + params[_MEMORY][:, None] @ params[_WEIGHT].mT  # head(z + m), as the head is linear
    mean = (batch.weight[:, None] @ z)[:, 0]  # (a, d)
    apart = (mean - batch.shared["consensus"]).square().mean(dim=1)
    return batch.loss(with_memory) + batch.shared["kappa"] / 2 * apart
