"""pFedFDA: a common body under a Gaussian classifier, whose statistics each client adapts to its own features.

McLaughlin & Su (2024), "Personalized Federated Learning via Feature Distribution Adaptation", NeurIPS,
https://arxiv.org/abs/2411.00329. Features z of class c are taken for Gaussian with mean mu_c and a covariance S that
classes share, so that the most probable class is that of a linear head: weights S^-1 mu_c, biases -1/2 mu_c' S^-1 mu_c
+ log pi_c, pi being the client's own class frequencies. In a round the cohort is sent the body and the global mu and
S; each client trains the body under that head, which stays; estimates means and covariance of its features; and
interpolates, beta own + (1 - beta) global, with the beta of least cross-entropy in two-fold cross-validation over its
training samples. It sends back the body and the interpolated statistics, of all of which the server takes the mean,
weighted by samples.

A client answers with the last body under statistics that it has adapted in the same way; nothing is remembered from
round to round. As in the authors' code global means begin as uniform draws and S as the identity, `ridge` is added to
the diagonal of a client's covariance, 1e-4 of the mean variance to that of any S that is inverted, and a class without
samples has a frequency of 1e-4. Where we leave it: one beta for means and covariance, out of `grid` rather than by
L-BFGS; features are those after local training, not those met on the way; a class without samples in a fold takes its
global mean. A client without two samples of any class has nothing to validate on and takes beta = 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Gt, Le, MinLen
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pflcli import parameters
from pflcli.engine.engine import probabilities
from pflcli.fl.attendance import Diverged
from pflcli.fl.run import Predictor, Run
from pflcli.methods.parts.class_counts import training_counts
from pflcli.parameters import Params, Stacked

KIND = "server"
NEEDS = ()
ADAPTS = True
PAPER = "pFedFDA"
YEAR = 2024

State = dict[str, Any]

_WEIGHT, _BIAS = "head.weight", "head.bias"
_RARE, _FLOOR = 1e-4, 1e-4
"""Frequency of a class without samples; share of the mean variance that is added to a covariance."""

_TOGETHER = 8
"""Clients whose betas are chosen at a time, in one product where each alone would take a call."""


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
    """Return the common initial body, and statistics that know nothing."""
    start, device = run.initial_model(), run.federation.y.device
    classes, size = start[_WEIGHT].shape
    means = torch.from_numpy(run.rng("means").random((classes, size))).float().to(device)
    return {
        "body": parameters.part(start, "body."),
        "statistics": {"means": means, "covariance": torch.eye(size, device=device)},
    }


def train_round(run: Run, state: State, t: int) -> State:
    """Train the body of each client of a cohort under its head; average bodies and adapted statistics."""
    cohort, common = run.cohort(t), state["statistics"]
    downloaded = run.download({**state["body"], **common}, cohort)
    mean, rejected, shared = run.averaging(downloaded), list[int](), _exact(common)
    principal = _principal(shared)
    for ids in run.client_chunks(cohort, 2 * parameters.size(downloaded)):
        start = {**parameters.repeat(state["body"], len(ids)), **_heads(run, ids, common)}
        for part in run.local_sgd(ids, start, t=t, trainable="body."):
            fitted = _fitted(run, part.clients, part.params, shared, principal, t)
            adapted = {name: torch.stack([own[name] for own, _ in fitted]).to(value) for name, value in common.items()}
            rejected += part.clients[~parameters.finite(adapted)].tolist()
            if not rejected:
                mean.add({**part.params, **adapted}, part.weights, part.clients)
    if rejected:
        raise Diverged(rejected, ("sgd", t))
    value = mean.value()
    return {"body": {name: value[name] for name in state["body"]}, "statistics": {name: value[name] for name in common}}


def personalize(run: Run, state: State, clients: NDArray[np.int64]) -> Predictor:
    """Answer with the common body and each client's adapted statistics."""
    models = {**parameters.repeat(state["body"], len(clients)), **_heads(run, clients, state["statistics"])}
    shared = _exact(state["statistics"])
    fitted = _fitted(run, clients, models, shared, _principal(shared), "personalize")
    heads, priors = [_head(own) for own, _ in fitted], _log_priors(run, clients)

    def answer(split: str) -> dict[str, NDArray[np.float32]]:
        rows = []
        for z, (weight, bias), prior in zip(_features(run, clients, models, split), heads, priors, strict=True):
            rows.append(probabilities(z.nan_to_num(0.0, 0.0, 0.0) @ weight.T + bias + prior))
        return {"p": np.concatenate(rows)}

    chosen = {"beta": np.asarray([beta for _, beta in fitted])} if run.cfg.beta is None else {}
    return Predictor(answer, run.predicted_splits, tuned=chosen)


def _heads(run: Run, clients: NDArray[np.int64], common: Params) -> Stacked:
    """Return the clients' heads by the global statistics and their own frequencies, (m, ...)."""
    weight, bias = _head(_exact(common))
    heads = {_WEIGHT: weight.expand(len(clients), *weight.shape), _BIAS: bias + _log_priors(run, clients)}
    return {name: value.to(run.init[name]) for name, value in heads.items()}


def _head(statistics: Params) -> tuple[Tensor, Tensor]:
    """Return weights (..., C, d) and biases (..., C) of the most probable class, without frequencies."""
    means, covariance = statistics["means"], statistics["covariance"]
    floor = torch.eye(means.shape[-1]).double() * covariance.diagonal(dim1=-2, dim2=-1).mean(dim=-1)[..., None, None]
    weight = torch.linalg.solve((1 - _FLOOR) * covariance + _FLOOR * floor, means.mT).mT
    return weight, -(means * weight).sum(dim=-1) / 2


def _log_priors(run: Run, clients: NDArray[np.int64]) -> Tensor:
    """Return the logarithms of the clients' class frequencies (m, C)."""
    counts = training_counts(run, clients).astype(np.float64)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1) + _RARE
    return torch.from_numpy(np.log(shares / shares.sum(axis=1, keepdims=True)))


def _features(run: Run, clients: NDArray[np.int64], models: Stacked, split: str) -> list[Tensor]:
    """Return what the head of each client's model reads of its samples, (n, d) in float64."""
    size = run.init[_WEIGHT].shape[1]
    return [z[:, :size].cpu().double() for z in run.engine.embed_each(clients, models, split)]


def _exact(statistics: Params) -> Params:
    """Return statistics in float64; steps on uploads, such as noise, may have left the covariance asymmetric."""
    exact = {name: value.cpu().double() for name, value in statistics.items()}
    return {**exact, "covariance": (exact["covariance"] + exact["covariance"].T) / 2}


def _principal(common: Params) -> tuple[Tensor, Params]:
    """Return the principal axes (d, d) of the global covariance, and the statistics in them: that is diagonal."""
    # Where statistics are not finite clients diverge, and the run names them; a decomposition would only fail.
    covariance = torch.where(common["covariance"].isfinite(), common["covariance"], 0.0)
    variances, axes = torch.linalg.eigh(covariance)
    return axes, {"means": common["means"] @ axes, "covariance": variances.diag()}


def _fitted(
    run: Run,
    clients: NDArray[np.int64],
    models: Stacked,
    shared: Params,
    principal: tuple[Tensor, Params],
    t: int | str,
) -> list[tuple[Params, float]]:
    """Return each client's adapted statistics, in float64, with its beta; not finite where its features are not.

    ``shared`` are the global statistics, ``principal`` what ``_principal`` makes of them.
    """
    embedded, priors = _features(run, clients, models, "train"), _log_priors(run, clients)
    if isinstance(t, str):  # a newcomer's samples may overflow the global model
        embedded = [z.nan_to_num(0.0, 0.0, 0.0) for z in embedded]
    labels = [run.federation.y[run.federation.block(int(client), "train")].cpu() for client in clients]
    betas = np.full(len(clients), 1.0 if run.cfg.beta is None else run.cfg.beta)
    adapts = [bool(z.isfinite().all()) for z in embedded]
    order = sorted(
        np.flatnonzero(adapts).tolist() if run.cfg.beta is None else [], key=lambda place: len(labels[place])
    )
    groups = [order[first : first + _TOGETHER] for first in range(0, len(order), _TOGETHER)]

    def choose(number: int) -> list[float]:
        group = groups[number]
        folds = [_folds(labels[place].numpy(), run.rng("folds", t, int(clients[place]))) for place in group]
        samples = [(embedded[place], labels[place]) for place in group]
        return _betas(run.cfg, samples, folds, principal, priors[group])

    for group, chosen in zip(groups, run.engine.each(choose, len(groups)), strict=True):
        betas[group] = chosen

    def fit(place: int) -> tuple[Params, float]:
        beta = float(betas[place])
        return _interpolated(_estimated(embedded[place], labels[place], shared, run.cfg.ridge), shared, beta), beta

    return run.engine.each(fit, len(clients))


def _estimated(z: Tensor, y: Tensor, common: Params, ridge: float) -> Params:
    """Return the means (C, d) and covariance (d, d) of features (n, d); a class without samples has its global mean."""
    means, apart = _deviations(z, functional.one_hot(y, len(common["means"])).double(), common)
    covariance = apart.T @ apart
    covariance.diagonal().add_(ridge)
    return {"means": means, "covariance": covariance}


def _deviations(z: Tensor, classes: Tensor, common: Params) -> tuple[Tensor, Tensor]:
    """Return the means (..., C, d) of features (..., n, d), and A (..., n, d): A' A is the covariance without ridge.

    ``classes`` (..., n, C) is one at each sample's class; rows of zeros are no samples.
    """
    counts = classes.sum(dim=-2)[..., None]
    means = torch.where(counts > 0, classes.mT @ z / counts.clamp(min=1), common["means"])
    freedom = (counts.sum(dim=-2, keepdim=True) - 1).clamp(min=1)
    return means, (z * classes.sum(dim=-1, keepdim=True) - classes @ means) / freedom.sqrt()


def _interpolated(own: Params, common: Params, beta: float) -> Params:
    return {name: beta * value + (1 - beta) * common[name] for name, value in own.items()}


def _folds(y: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the half, 0 or 1, of each sample (n,), -1 for a lone sample of its class."""
    fold = np.full(len(y), -1)
    for c in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == c))
        if len(rows) > 1:  # a lone sample would leave one half without its class
            fold[rows] = np.arange(len(rows)) % 2
    return fold


def _betas(
    cfg: Config,
    samples: Sequence[tuple[Tensor, Tensor]],
    folds: Sequence[NDArray[np.int64]],
    principal: tuple[Tensor, Params],
    priors: Tensor,
) -> list[float]:
    """Return the beta of each of q clients by its features (n, d), labels (n,) and ``folds`` (n,).

    It has the least cross-entropy where each half of the samples is answered by the other's statistics; without halves
    it is 0. ``priors`` (q, C) are the logarithms of the classes' frequencies.
    """
    axes, common = principal
    halves = [_half(samples, [fold == half for fold in folds], axes, len(common["means"])) for half in (0, 1)]
    losses = torch.zeros(len(samples), len(cfg.grid)).double()
    for (queries, true), support in (halves, halves[::-1]):
        weight, bias = _candidates(cfg, *support, common)
        logits = weight @ queries[:, None].mT.to(weight) + (bias + priors[:, None])[..., None]  # (q, g, C, n)
        right = (logits.log_softmax(dim=2) * true.mT[:, None]).sum(dim=(2, 3))
        losses -= right / true.sum(dim=(1, 2)).clamp(min=1)[:, None]
    is_divided = [bool((fold >= 0).any()) for fold in folds]
    least = losses.argmin(dim=1).tolist()
    return [cfg.grid[place] if divided else 0.0 for place, divided in zip(least, is_divided, strict=True)]


def _half(
    samples: Sequence[tuple[Tensor, Tensor]], masks: Sequence[NDArray[np.bool_]], axes: Tensor, classes: int
) -> tuple[Tensor, Tensor]:
    """Return those samples of each client that are in its mask: features (q, n, d) along ``axes``, classes (q, n, C).

    Rows of zeros follow where a client has fewer than others.
    """
    n = max(int(mask.sum()) for mask in masks)
    z, true = torch.zeros(len(samples), n, len(axes)).double(), torch.zeros(len(samples), n, classes).double()
    for place, ((own, labels), mask) in enumerate(zip(samples, masks, strict=True)):
        rows = torch.from_numpy(np.flatnonzero(mask))
        z[place, : len(rows)] = own[rows]
        true[place, : len(rows)] = functional.one_hot(labels[rows], classes)
    return z @ axes, true


def _candidates(cfg: Config, z: Tensor, classes: Tensor, common: Params) -> tuple[Tensor, Tensor]:
    """Return the heads by each beta of the grid, weights (q, g, C, d) and biases (q, g, C), without frequencies.

    Features ``z`` (q, n, d) and the statistics are in principal axes; ``classes`` (q, n, C) is as in ``_deviations``.
    With few samples a covariance is a diagonal D plus c A' A of low rank. The Woodbury identity inverts it:
    (D + c A' A)^-1 = D^-1 - D^-1 A' (1 + c A D^-1 A')^-1 c A D^-1.
    """
    n, d = z.shape[1:]
    beta = torch.tensor(cfg.grid, dtype=torch.float64)[:, None, None]
    own_means, apart = (value[:, None] for value in _deviations(z, classes, common))
    means = torch.lerp(common["means"], own_means, beta)  # (q, g, C, d)
    if 2 * n > d:
        own = apart.mT @ apart + cfg.ridge * torch.eye(d)
        return _head({"means": means, "covariance": torch.lerp(common["covariance"], own, beta)})
    variances = torch.lerp(common["covariance"].diagonal(), torch.tensor(cfg.ridge).double(), beta)  # (g, 1, d)
    squares = apart.square().sum(dim=(2, 3), keepdim=True) / d
    diagonal = (1 - _FLOOR) * variances + _FLOOR * (variances.mean(dim=2, keepdim=True) + beta * squares)
    # In single precision, which halves the time: a diagonal is inverted exactly, and losses only rank the grid.
    apart, means, diagonal, beta = apart.float(), means.float(), diagonal.float(), beta.float()
    rows = torch.cat([apart.expand(-1, len(beta), -1, -1), means], dim=2) / diagonal
    products = rows @ apart.mT * ((1 - _FLOOR) * beta)  # (q, g, n + C, n)
    inner = torch.eye(n) + products[:, :, :n]
    weight = rows[:, :, n:] - torch.linalg.solve(inner, products[:, :, n:].mT).mT @ rows[:, :, :n]
    return weight, -(means * weight).sum(dim=-1) / 2
