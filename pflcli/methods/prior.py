"""Prior correction: reweights the global model's predictions by the client's own class frequencies.

Saerens, Latinne & Decaestecker (2002), "Adjusting the Outputs of a Classifier to New a Priori Probabilities",
https://doi.org/10.1162/089976602753284446, Eq. 2.4: p_i(c | x) is proportional to p(c | x) pi_i(c) / pi(c). In the
paper, pi_i is estimated by EM on unlabelled samples. Here a client counts its training samples, and pi_i(c) = (n_ic +
kappa pi(c)) / (n_i + kappa) shrinks the frequencies of few samples towards those of all clients. Clients upload the
frequencies of their classes once, and the server returns their mean pi, weighted by samples. A class without samples
counts as 1e-6 of all samples. No model is trained: this is a cheap baseline that any personalization should beat.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray

from pflcli.method import ClientModel, Params, Predictor, Run
from pflcli.methods.parts.class_counts import shrunk_prior, training_counts

KIND = "server"
NEEDS = ("embeddings",)
ADAPTS = True
SENDS_MORE = "class frequencies before the rounds"
PAPER = "Prior correction"
YEAR = 2002
GRID = {"kappa": (1.0, 3.0, 10.0, 30.0), "strength": (0.5, 1.0, 1.5)}

State = dict[str, Params]


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    kappa: Annotated[float, Ge(0)] = 10.0
    """count the class frequencies of all clients like this many of a client's own samples"""
    strength: Annotated[float, Ge(0)] = 1.0
    """raise the correction to this power; 0 is the global model"""


def setup(run: Run) -> State:
    """Let clients send the frequencies of their classes; return those of all clients."""
    able, classes = run.participants(), run.federation.classes
    equal = {"prior": torch.full((classes,), 1 / classes)}
    mean, counts = run.averaging(equal), training_counts(run, able)
    if len(able):
        sizes = counts.sum(axis=1)
        mean.add({"prior": torch.from_numpy(counts / sizes[:, None]).float()}, sizes.astype(np.float64), able)
    return {"shared": run.download(mean.value() if mean.is_defined else equal, able)}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with the global model, corrected by each client's frequencies."""
    assert run.embeddings is not None
    prior, own = shrunk_prior(run, clients, state["shared"]["prior"], run.cfg.kappa)
    offsets = run.cfg.strength * (np.log(own) - np.log(prior))  # (m, C)
    parts = {split: run.embeddings[split].take(clients) for split in run.predicted_splits}

    def answer(split: str) -> dict[str, NDArray[np.float32]]:
        rows = np.repeat(offsets, np.diff(parts[split].offsets), axis=0)
        return {"p": run.task.predict(torch.from_numpy(parts[split].logits + rows))}

    def model_of(client: int) -> ClientModel | None:
        if run.backbone is None or "head.bias" not in run.backbone:
            return None
        bias = run.backbone["head.bias"]
        offset = torch.from_numpy(offsets[np.flatnonzero(clients == client)[0]]).to(bias.device)
        return ClientModel(({**run.backbone, "head.bias": (bias.double() + offset).to(bias)},))

    return Predictor(answer, run.predicted_splits, model_of=model_of)
