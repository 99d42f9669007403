"""pFedFDA: a common body under a Gaussian classifier, whose statistics each client adapts to its own features.

McLaughlin & Su (2024), "Personalized Federated Learning via Feature Distribution Adaptation", NeurIPS,
https://arxiv.org/abs/2411.00329. The features z of class c are modelled as Gaussian with mean mu_c and a covariance S
that all classes share. The most probable class is then given by a linear head with weights S^-1 mu_c and biases -1/2
mu_c' S^-1 mu_c + log pi_c, where pi are the class frequencies of the client.

In a round, the cohort downloads the body and the global mu and S. Each client trains the body under this head, which
stays fixed. It estimates the means and the covariance of its features, and interpolates, beta own + (1 - beta) global,
with the beta of lowest cross-entropy in two-fold cross-validation over its training samples. It uploads the body and
the interpolated statistics. The server averages both, weighted by samples.

A client predicts with the last body and statistics that it has adapted in the same way; it keeps nothing from round to
round. As in the authors' code, the global means start as uniform draws and S as the identity; `ridge` is added to the
diagonal of a client's covariance, and 1e-4 of the mean variance to that of any S that is inverted; a class without
samples has a frequency of 1e-4.

Deviations from the paper: a single beta for means and covariance, chosen from `grid` instead of by L-BFGS. Features are
computed after local training, not during it. A class without samples in a fold uses its global mean. A client without
two samples of any class cannot validate, and uses beta = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Gt, Le, MinLen
from numpy.typing import NDArray
from torch import Tensor

from pflcli.method import Params, Predictor, Run, Stacked, TrainedClients, parameters
from pflcli.methods.parts import gaussians
from pflcli.methods.parts.class_counts import training_counts

KIND = "server"
NEEDS = ()
DIVIDES = True
ADAPTS = True
PAPER = "pFedFDA"
YEAR = 2024

State = dict[str, Any]

_WEIGHT, _BIAS = "head.weight", "head.bias"
_MIN_FREQUENCY = 1e-4
"""Frequency of a class without samples."""

_CLIENTS_AT_A_TIME = 8
"""Number of clients that adapt together: one product replaces a call per client."""


@dataclass(frozen=True)
class Config:
    """Options of the method."""

    beta: Annotated[float, Ge(0), Le(1)] | None = None
    """give a client's own statistics this share; 0 uses the global ones; none lets each client choose from grid
    by cross-validation"""
    grid: Annotated[tuple[Annotated[float, Ge(0), Le(1)], ...], MinLen(1)] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """choose beta from these values; ties go to the first"""
    ridge: Annotated[float, Gt(0)] = 0.1
    """add this to the variances of a client's features (the authors' code: 1)"""


def setup(run: Run) -> State:
    """Return the common initial body and uninformed statistics."""
    start, device = run.initial_model(), run.federation.y.device
    classes, size = start[_WEIGHT].shape
    means = torch.from_numpy(run.rng("means").random((classes, size))).float().to(device)
    return {
        "body": parameters.part(start, "body."),
        "statistics": {"means": means, "covariance": torch.eye(size, device=device)},
    }


def train_round(run: Run, state: State, t: int) -> State:
    """Train the body of each client of a cohort under its head; average bodies and adapted statistics."""
    cohort = run.cohort(t)
    downloaded = run.download({**state["body"], **state["statistics"]}, cohort)
    body, common = ({name: downloaded[name] for name in state[key]} for key in ("body", "statistics"))
    mean, shared = run.averaging(downloaded), _to_double(common)
    principal = gaussians.principal_axes(shared)

    def adapt(part: TrainedClients) -> Stacked:
        adapted, _ = _adapt_statistics(run, part.clients, part.params, shared, principal, t)
        return {name: adapted[name].to(value) for name, value in common.items()}

    for ids in run.client_chunks(cohort):
        start = {**parameters.repeat(body, len(ids)), **_heads(run, ids, common)}
        for part in run.local_sgd(ids, start, t=t, trainable="body.", also_upload=adapt):
            mean.add(part.params, part.weights, part.clients)
    value = mean.value()
    return {"body": {name: value[name] for name in body}, "statistics": {name: value[name] for name in common}}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Predict with the common body and each client's adapted statistics."""
    models = {**parameters.repeat(state["body"], len(clients)), **_heads(run, clients, state["statistics"])}
    shared = _to_double(state["statistics"])
    adapted, betas = _adapt_statistics(run, clients, models, shared, gaussians.principal_axes(shared), "personalize")
    own, priors = _to_double(adapted), _log_priors(run, clients)
    heads = run.engine.each(lambda place: gaussians.linear_head(parameters.pick(own, place)), len(clients))

    def answer(split: str) -> dict[str, NDArray[np.float32]]:
        embedded = [z.double().nan_to_num(0, 0, 0) for z in _features(run, clients, models, split)]
        logits = (z @ weight.T + bias + prior for z, (weight, bias), prior in zip(embedded, heads, priors, strict=True))
        return {"p": np.concatenate([run.task.predict(own) for own in logits])}

    return Predictor(answer, run.predicted_splits, tuned={"beta": betas} if run.cfg.beta is None else {})


def _heads(run: Run, clients: NDArray[np.int64], common: Params) -> Stacked:
    """Return the clients' heads by the global statistics and their own frequencies, (m, ...)."""
    weight, bias = gaussians.linear_head(_to_double(common))
    heads = {_WEIGHT: weight.expand(len(clients), *weight.shape), _BIAS: bias + _log_priors(run, clients)}
    return {name: value.to(run.init[name]) for name, value in heads.items()}


def _log_priors(run: Run, clients: NDArray[np.int64]) -> Tensor:
    """Return the logarithms of the clients' class frequencies (m, C)."""
    counts = training_counts(run, clients).astype(np.float64)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1) + _MIN_FREQUENCY
    return torch.from_numpy(np.log(shares / shares.sum(axis=1, keepdims=True)))


def _features(run: Run, clients: NDArray[np.int64], models: Stacked, split: str) -> list[Tensor]:
    """Return what the head of each client's model reads of its samples, (n, d)."""
    size = run.init[_WEIGHT].shape[1]
    outputs = run.engine.outputs_each(clients, models, split, features=True)
    return [z[:, :size].cpu() for _, z in outputs]


def _to_double(statistics: Params) -> Params:
    """Return statistics (...) in float64; steps on uploads, such as noise, may have left the covariance asymmetric."""
    exact = {name: value.cpu().double() for name, value in statistics.items()}
    return {**exact, "covariance": (exact["covariance"] + exact["covariance"].mT) / 2}


def _adapt_statistics(
    run: Run,
    clients: NDArray[np.int64],
    models: Stacked,
    shared: Params,
    principal: tuple[Tensor, Params],
    t: int | str,
) -> tuple[Stacked, NDArray[np.float64]]:
    """Return each client's adapted statistics (m, ...), with its beta (m,); not finite where its features are not.

    ``shared`` are the global statistics, ``principal`` is ``gaussians.principal_axes`` of them.
    """
    embedded = _features(run, clients, models, "train")
    if isinstance(t, str):  # a newcomer's samples may overflow the global model
        embedded = [z.nan_to_num(0.0, 0.0, 0.0) for z in embedded]
    labels = [run.federation.y[run.federation.block(int(client), "train")].cpu() for client in clients]
    priors, order = _log_priors(run, clients), np.argsort([len(y) for y in labels], kind="stable")
    groups = [order[first : first + _CLIENTS_AT_A_TIME] for first in range(0, len(order), _CLIENTS_AT_A_TIME)]

    betas = np.full(len(clients), run.cfg.beta or 0.0)
    adapted = {name: torch.empty(len(clients), *value.shape) for name, value in shared.items()}

    def fit(number: int) -> None:
        group = groups[number]
        samples = [(embedded[place], labels[place]) for place in group]
        if run.cfg.beta is None:
            draws = [run.rng("folds", t, int(client)) for client in clients[group]]
            folds = [_draw_folds(y.numpy(), draw) for (_, y), draw in zip(samples, draws, strict=True)]
            betas[group] = gaussians.cross_validate(
                run.cfg.grid, run.cfg.ridge, samples, folds, principal, priors[group]
            )
        parameters.write_rows(adapted, group, gaussians.mixed_statistics(samples, betas[group], shared, run.cfg.ridge))

    run.engine.each(fit, len(groups))
    return adapted, betas


def _draw_folds(y: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the half, 0 or 1, of each sample (n,), -1 for a lone sample of its class."""
    fold, order = np.full(len(y), -1), np.argsort(y, kind="stable")
    for of_class in np.split(order, np.flatnonzero(np.diff(y[order])) + 1):
        rows = rng.permutation(of_class)
        if len(rows) > 1:  # a lone sample would leave one half without its class
            fold[rows] = np.arange(len(rows)) % 2
    return fold
