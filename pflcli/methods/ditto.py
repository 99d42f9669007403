"""Ditto: each client trains a personal model that is pulled towards the global model of FedAvg.

Li et al. (2021), https://arxiv.org/abs/2012.04221, Algorithm 1. Client i minimizes F_i(v) + lambda/2 |v - w|^2 over its
personal model v, where w is the global model.

In a round, the cohort downloads w^t. Each client takes personal steps v <- v - lr (grad F_i(v) + lambda (v - w^t)),
towards the model that it downloaded, and then trains w^t as in FedAvg. Personal models start from the common initial
model. They do not change in rounds in which the client does not take part.

By default, each client chooses lambda on its validation samples, as in the paper (section 5). In a round it takes its
personal steps once for each value of `grid`, on the same minibatches, and keeps the model with the lowest validation
loss (the first one in `grid` if several are equal). A client with fewer than 4 validation samples uses 1, as in the
paper. The authors' code chooses at every step; here the choice holds for a round. The cost is one personal training per
value of `grid`. A fixed `lam` costs one and does not use validation samples. With ``--refit`` a client uses the lambda
that it chose last in the earlier run.

A client predicts with its personal model. A client that never took part starts from the last global model when it
personalizes, and takes `newcomer_epochs` of the same personal steps, with the same choice. All models are trained on
training samples only. If lambda is chosen, validation accuracy is measured on the samples that chose it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, MinLen
from numpy.typing import NDArray

from pflcli.method import ModelTable, Params, Predictor, Run, TrainedClients

KIND = "server"
NEEDS = ()
PERSONAL_MODELS = "personal"
KEEPS = ("lambda",)
PAPER = "Ditto"
CHOOSES_IN_ROUNDS = "lambda"
YEAR = 2021
TASKS = ("any",)
GRID = {"lam": (None, 0.1, 1.0, 2.0), "lr": (0.0, 0.02, 0.2)}

State = dict[str, Any]

_MIN_VALIDATION_SAMPLES = 4
"""Number of validation samples that a client needs to choose lambda (the paper's number)."""
_DEFAULT_LAMBDA = 1.0
"""Lambda of a client with fewer validation samples (the paper's value)."""


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    lam: Annotated[float, Ge(0)] | None = None
    """pull personal models to the global one with this weight (lambda); 0 is training alone; none lets each
    client choose from grid by validation loss"""
    grid: Annotated[tuple[Annotated[float, Ge(0)], ...], MinLen(1)] = (0.1, 1.0, 2.0)
    """choose lambda from these values; the paper's are 0.1, 1 and 2"""
    personal_epochs: Annotated[int, Ge(0)] = 0
    """train the personal model for this many local epochs per round; 0 uses --epochs or --steps"""
    lr: Annotated[float, Ge(0)] = 0.0
    """train the personal model with this learning rate; 0 uses that of the round; steps are stable while lr
    lambda < 2"""
    newcomer_epochs: Annotated[int, Ge(0)] = 5
    """train clients that never took part for this many local epochs when they personalize; 0 gives them the
    global model"""


def choices(cfg: Config) -> tuple[str, ...]:
    """Return what each client chooses by its validation samples."""
    return ("lambda",) if cfg.lam is None else ()


def setup(run: Run) -> State:
    """Return the common initial model, for the server and for every client, and lambdas if clients choose them."""
    state: State = {"global": run.initial_model(), "personal": run.table(run.initial_model())}
    if run.cfg.lam is None:
        state["lambda"] = torch.full((len(run.clients),), _DEFAULT_LAMBDA, dtype=torch.float64)
    return state


def train_round(run: Run, state: State, t: int) -> State:
    """Train the cohort's personal models near the global one, and the global one as FedAvg does."""
    cohort, personal = run.cohort(t), state["personal"]
    start = run.download(state["global"], cohort)
    rate = run.cfg.lr or run.settings.lr_at(t)
    epochs = run.cfg.personal_epochs or None
    lambdas = {"lambda": state["lambda"].clone()} if "lambda" in state else {}
    for part, lam in _train_personal(run, cohort, personal, start, t=t, epochs=epochs, lr=rate):
        personal[part.clients] = part.params
        if lambdas:
            lambdas["lambda"][part.clients] = torch.from_numpy(lam)
    model = run.average(run.local_sgd(cohort, start, t=t), start)
    return {"global": model, "personal": personal, **lambdas}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with each client's personal model."""
    start, personal = state["global"], state["personal"]
    rate = run.cfg.lr or run.last_lr
    newcomers, epochs = personal.unwritten(clients), run.cfg.newcomer_epochs
    parts = list(_train_personal(run, newcomers, start, start, t="newcomer", epochs=epochs, lr=rate))
    predictor = run.predictor(clients, personal.overlay(clients, (part for part, _ in parts)))
    if "lambda" not in state:
        return predictor
    lambdas = state["lambda"].cpu().numpy().copy()
    for part, lam in parts:
        lambdas[part.clients] = lam
    return replace(predictor, tuned={"lambda": lambdas[clients]})


def _train_personal(
    run: Run, clients: NDArray[np.int64], initial: Params | ModelTable, anchor: Params, **plan: Any
) -> Iterator[tuple[TrainedClients, NDArray[np.float64]]]:
    """Yield the clients' personal models after proximal steps, in parts, with the lambda of each client (n,)."""

    def steps(ids: NDArray[np.int64], lam: float) -> Iterable[TrainedClients]:
        return run.local_sgd(ids, initial, name="personal", prox=(anchor, lam), **plan)

    # The lambda of each client (n,), nan for those that choose it by validation samples.
    lambdas = run.read_choices("lambda", clients) if run.cfg.lam is None else np.full(len(clients), run.cfg.lam)
    if lambdas is None:
        chooses = run.federation.sizes("validation")[clients] >= _MIN_VALIDATION_SAMPLES
        lambdas = np.where(chooses, np.nan, _DEFAULT_LAMBDA)
    for lam in np.unique(lambdas[~np.isnan(lambdas)]):
        for part in steps(clients[lambdas == lam], float(lam)):
            yield part, np.full(len(part.clients), lam)
    for ids in run.client_chunks(clients[np.isnan(lambdas)]):
        yield _choose_lambda(run, ids, steps)


def _choose_lambda(
    run: Run, ids: NDArray[np.int64], steps: Callable[[NDArray[np.int64], float], Iterable[TrainedClients]]
) -> tuple[TrainedClients, NDArray[np.float64]]:
    """Return each client's model with the lowest validation loss over the lambdas of the grid, and that lambda (n,)."""
    (best,) = steps(ids, run.cfg.grid[0])  # a chunk of clients is trained in one part
    lowest = run.client_losses(ids, best.params, "validation")
    lambdas = np.full(len(ids), run.cfg.grid[0])
    for lam in run.cfg.grid[1:]:
        (part,) = steps(ids, lam)
        loss = run.client_losses(ids, part.params, "validation")
        better = loss < lowest
        for name, value in part.params.items():
            rows = torch.from_numpy(better).to(value.device)
            best.params[name][rows] = value[rows]
        lowest, lambdas = np.where(better, loss, lowest), np.where(better, lam, lambdas)
    return best, lambdas
