"""FedBN: FedAvg in which every client keeps its own batch normalization.

Li et al. (2021), https://arxiv.org/abs/2102.07623, Algorithm 1, for clients whose inputs differ in distribution.
Scales, shifts and running statistics of BatchNorm layers are neither uploaded nor averaged. All other parameters are
those of FedAvg. With a model without BatchNorm the method is exactly FedAvg.

A client predicts with the last global model and its own BatchNorm layers from its last round. These start from the
common initial model. A client that never took part trains only its BatchNorm layers, in the last global model, when it
personalizes. Predictions use training samples only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from pflcli.method import Params, Predictor, Run, parameters

KIND = "server"
NEEDS = ()
PERSONAL_MODELS = "norms"
NO_EFFECT = "the model has no batch normalization"
PAPER = "FedBN"
YEAR = 2021
TASKS = ("any",)

State = dict[str, Any]

_MARK = "running_mean"


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    newcomer_epochs: Annotated[int, Ge(0)] = 5
    """train BatchNorm of clients that never took part for this many local epochs when they personalize; 0 keeps
    its initial values"""


def _layers(params: Params) -> tuple[str, ...]:
    """Return the prefix of each BatchNorm layer, which is what has running statistics."""
    return tuple(name.removesuffix(_MARK) for name in params if name.endswith(f".{_MARK}"))


def setup(run: Run) -> State:
    """Return the common initial model: what is shared, and the normalization of every client."""
    start = run.initial_model()
    layers = _layers(start)
    norms = {name: value for name, value in start.items() if name.startswith(layers)}
    shared = {name: value for name, value in start.items() if name not in norms}
    return {"shared": shared, "norms": run.table(norms)} if norms else {"shared": shared}


def train_round(run: Run, state: State, t: int) -> State:
    """Train a cohort, each with its own normalization, and average what is shared."""
    cohort, norms = run.cohort(t), state.get("norms")
    shared = run.download(state["shared"], cohort)
    start = shared if norms is None else {**parameters.repeat(shared, len(cohort)), **norms[cohort]}
    mean = run.averaging(shared)
    for part in run.local_sgd(cohort, start, t=t):
        mean.add(part.params, part.weights, part.clients)
        if norms is not None:
            norms[part.clients] = part.params
    return {**state, "shared": mean.value()}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with each client's normalization layers in the global model."""
    shared, norms = state["shared"], state.get("norms")
    if norms is None:
        return run.predictor(clients, shared)
    start, epochs = {**shared, **norms.default}, run.cfg.newcomer_epochs
    own_norms = run.adapt(norms, clients, start, epochs=epochs, trainable=_layers(norms.default))
    return run.predictor(clients, {**parameters.repeat(shared, len(clients)), **own_norms})
