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
from pflcli.federation.attendance import Diverged
from pflcli.federation.run import Predictor, Run
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
"""Clients that adapt at a time, in one product where each alone would take a call."""

_Samples = tuple[Tensor, Tensor]
"""A client's features (n, d) and labels (n,)."""


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
            adapted, _ = _fitted(run, part.clients, part.params, shared, principal, t)
            adapted = {name: adapted[name].to(value) for name, value in common.items()}
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
    adapted, betas = _fitted(run, clients, models, shared, _principal(shared), "personalize")
    own, priors = _exact(adapted), _log_priors(run, clients)
    heads = run.engine.each(lambda place: _head(parameters.pick(own, place)), len(clients))

    def answer(split: str) -> dict[str, NDArray[np.float32]]:
        embedded = [z.double().nan_to_num(0, 0, 0) for z in _features(run, clients, models, split, compiled=False)]
        logits = (z @ weight.T + bias + prior for z, (weight, bias), prior in zip(embedded, heads, priors, strict=True))
        return {"p": np.concatenate([probabilities(own) for own in logits])}

    return Predictor(answer, run.predicted_splits, tuned={"beta": betas} if run.cfg.beta is None else {})


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


def _features(run: Run, clients: NDArray[np.int64], models: Stacked, split: str, *, compiled: bool) -> list[Tensor]:
    """Return what the head of each client's model reads of its samples, (n, d); ``compiled`` as in ``Inference``."""
    size = run.init[_WEIGHT].shape[1]
    outputs = run.engine.outputs_each(clients, models, split, features=True, compiled=compiled)
    return [z[:, :size].cpu() for _, z in outputs]


def _exact(statistics: Params) -> Params:
    """Return statistics (...) in float64; steps on uploads, such as noise, may have left the covariance asymmetric."""
    exact = {name: value.cpu().double() for name, value in statistics.items()}
    return {**exact, "covariance": (exact["covariance"] + exact["covariance"].mT) / 2}


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
) -> tuple[Stacked, NDArray[np.float64]]:
    """Return each client's adapted statistics (m, ...), with its beta (m,); not finite where its features are not.

    ``shared`` are the global statistics, ``principal`` what ``_principal`` makes of them.
    """
    embedded = _features(run, clients, models, "train", compiled=isinstance(t, int))
    if isinstance(t, str):  # a newcomer's samples may overflow the global model
        embedded = [z.nan_to_num(0.0, 0.0, 0.0) for z in embedded]
    labels = [run.federation.y[run.federation.block(int(client), "train")].cpu() for client in clients]
    priors, order = _log_priors(run, clients), np.argsort([len(y) for y in labels], kind="stable")
    groups = [order[first : first + _TOGETHER] for first in range(0, len(order), _TOGETHER)]

    betas = np.full(len(clients), run.cfg.beta or 0.0)
    adapted = {name: torch.empty(len(clients), *value.shape) for name, value in shared.items()}

    def fit(number: int) -> None:
        group = groups[number]
        samples = [(embedded[place], labels[place]) for place in group]
        if run.cfg.beta is None:
            draws = [run.rng("folds", t, int(client)) for client in clients[group]]
            folds = [_folds(y.numpy(), draw) for (_, y), draw in zip(samples, draws, strict=True)]
            betas[group] = _betas(run.cfg, samples, folds, principal, priors[group])
        parameters.write_rows(adapted, group, _adapted(samples, betas[group], shared, run.cfg.ridge))

    run.engine.each(fit, len(groups))
    return adapted, betas


def _adapted(samples: Sequence[_Samples], betas: NDArray[np.float64], common: Params, ridge: float) -> Stacked:
    """Return the statistics (q, ...) of each client's samples, mixed with the global ones by the ``betas`` (q,)."""
    common = {name: value.float() for name, value in common.items()}
    every = [(place, np.arange(len(y))) for place, (_, y) in enumerate(samples)]
    means, apart = _deviations(*_padded(samples, every, len(common["means"])), common)
    beta = torch.from_numpy(betas).float()[:, None, None]
    covariance = torch.baddbmm((1 - beta) * common["covariance"], (beta * apart).mT, apart)
    covariance.diagonal(dim1=1, dim2=2).add_(ridge * beta[:, 0])
    return {"means": torch.lerp(common["means"], means, beta), "covariance": covariance}


def _padded(
    samples: Sequence[_Samples], selected: Sequence[tuple[int, NDArray[np.int64]]], classes: int
) -> tuple[Tensor, Tensor]:
    """Return features (s, n, d) and classes (s, n, C) of ``selected`` samples: a client's place, and which of its own.

    Rows of zeros follow where there are fewer than elsewhere.
    """
    features, labels = zip(*samples, strict=True)
    first = np.cumsum([0, *map(len, labels)])
    z = torch.cat([*features, features[0].new_zeros(1, features[0].shape[1])])  # a sample of no class is the last
    true = functional.one_hot(torch.cat([*labels, torch.tensor([classes])]), classes + 1)[:, :classes].to(z)
    rows = np.full((len(selected), max(1, *(len(own) for _, own in selected))), first[-1])
    for row, (place, own) in zip(rows, selected, strict=True):
        row[: len(own)] = first[place] + own
    at = torch.from_numpy(rows.ravel())
    return z[at].view(*rows.shape, -1), true[at].view(*rows.shape, -1)


def _deviations(z: Tensor, classes: Tensor, common: Params) -> tuple[Tensor, Tensor]:
    """Return the means (..., C, d) of features (..., n, d), and A (..., n, d): A' A is the covariance without ridge.

    ``classes`` (..., n, C) is one at each sample's class; where it and ``z`` are rows of zeros there is no sample. A
    class without samples has its global mean.
    """
    counts = classes.sum(dim=-2)[..., None]
    means = torch.where(counts > 0, classes.mT @ z / counts.clamp(min=1), common["means"])
    freedom = (counts.sum(dim=-2, keepdim=True) - 1).clamp(min=1)
    return means, (z - classes @ means) / freedom.sqrt()


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
    samples: Sequence[_Samples],
    folds: Sequence[NDArray[np.int64]],
    principal: tuple[Tensor, Params],
    priors: Tensor,
) -> NDArray[np.float64]:
    """Return the beta of each of q clients by its features (n, d), labels (n,) and ``folds`` (n,).

    It has the least cross-entropy where each half of the samples is answered by the other's statistics; without halves
    it is 0. ``priors`` (q, C) are the logarithms of the classes' frequencies.
    """
    axes, common = principal
    halves = [(place, np.flatnonzero(fold == half)) for half in (0, 1) for place, fold in enumerate(folds)]
    z, true = _padded(samples, halves, priors.shape[1])  # (2 q, n, d), those of half 1 behind those of half 0
    z = z @ axes.to(z)
    weight, bias = _candidates(cfg, z, true, common)
    queries, true = (value.roll(len(folds), dims=0) for value in (z, true))  # of the other half
    logits = (weight.flatten(1, 2) @ queries.mT.to(weight)).view(*weight.shape[:3], -1)  # (2 q, g, C, n)
    # In double precision, as losses near zero may be compared.
    logp = (logits.double() + (bias + priors.repeat(2, 1)[:, None])[..., None]).log_softmax(dim=2)
    losses = -(logp * true.mT[:, None]).sum(dim=(2, 3)) / true.sum(dim=(1, 2)).clamp(min=1)[:, None]
    losses = losses[: len(folds)] + losses[len(folds) :]
    best = np.asarray(cfg.grid)[losses.argmin(dim=1).numpy()]
    return np.where([(fold >= 0).any() for fold in folds], best, 0.0)


def _candidates(cfg: Config, z: Tensor, classes: Tensor, common: Params) -> tuple[Tensor, Tensor]:
    """Return the heads by each beta of the grid, weights (q, g, C, d) and biases (q, g, C), without frequencies.

    Features ``z`` (q, n, d) and the statistics are in principal axes; ``classes`` (q, n, C) is as in ``_deviations``.
    With few samples a covariance is a diagonal D plus c A' A of low rank. The Woodbury identity inverts it:
    (D + c A' A)^-1 = D^-1 - D^-1 A' (1 + c A D^-1 A')^-1 c A D^-1.
    """
    (n, d), g = z.shape[1:], len(cfg.grid)
    # Few in single precision, which halves the time: a diagonal is inverted exactly, and losses only rank the grid.
    z, classes = (value.double() if 2 * n > d else value.float() for value in (z, classes))
    common, beta = {name: value.to(z) for name, value in common.items()}, z.new_tensor(cfg.grid)[:, None, None]
    own_means, apart = _deviations(z, classes, common)
    means = torch.lerp(common["means"], own_means[:, None], beta)  # (q, g, C, d)
    if 2 * n > d:
        own = (apart.mT @ apart + cfg.ridge * torch.eye(d))[:, None]
        return _head({"means": means, "covariance": torch.lerp(common["covariance"], own, beta)})
    variances = torch.lerp(common["covariance"].diagonal(), torch.tensor(cfg.ridge), beta)  # (g, 1, d)
    squares = apart.square().sum(dim=(1, 2))[:, None, None, None] / d
    diagonal = (1 - _FLOOR) * variances + _FLOOR * (variances.mean(dim=2, keepdim=True) + beta * squares)
    share = (1 - _FLOOR) * beta
    by_own = ((apart[:, None] / diagonal).flatten(1, 2) @ apart.mT).view(-1, g, n, n)  # (q, g, n, n)
    weight = means / diagonal
    by_means = (weight.flatten(1, 2) @ apart.mT).view(*means.shape[:3], n)  # (q, g, C, n)
    solved = torch.cholesky_solve((share * by_means).mT, torch.linalg.cholesky_ex(torch.eye(n) + share * by_own).L).mT
    weight = weight - (solved.flatten(1, 2) @ apart).view_as(means) / diagonal
    return weight, -(means * weight).sum(dim=-1) / 2
