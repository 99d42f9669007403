"""Classes as Gaussians with one covariance: their linear head, and fast cross-validation of mixed statistics.

The statistics of a client are mixed with global ones, beta own + (1 - beta) global. To choose beta, each half of the
samples is classified by the statistics of the other half. Clients are computed together, in the principal axes of the
global covariance, where few samples need no matrix of the size of the features.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pflcli.method import Params, Stacked

_FLOOR = 1e-4
"""Share of the mean variance in a covariance that is inverted."""

Samples = tuple[Tensor, Tensor]
"""A client's features (n, d) and labels (n,)."""


def linear_head(statistics: Params) -> tuple[Tensor, Tensor]:
    """Return the weights (..., C, d) and biases (..., C) of the linear head, without class frequencies."""
    means, covariance = statistics["means"], statistics["covariance"]
    floor = torch.eye(means.shape[-1]).double() * covariance.diagonal(dim1=-2, dim2=-1).mean(dim=-1)[..., None, None]
    weight = torch.linalg.solve((1 - _FLOOR) * covariance + _FLOOR * floor, means.mT).mT
    return weight, -(means * weight).sum(dim=-1) / 2


def principal_axes(common: Params) -> tuple[Tensor, Params]:
    """Return the principal axes (d, d) of the global covariance, and the statistics in these axes."""
    # A decomposition would fail on numbers that are not finite. The run then reports the clients that diverge.
    covariance = torch.where(common["covariance"].isfinite(), common["covariance"], 0.0)
    variances, axes = torch.linalg.eigh(covariance)
    return axes, {"means": common["means"] @ axes, "covariance": variances.diag()}


def mixed_statistics(samples: Sequence[Samples], betas: NDArray[np.float64], common: Params, ridge: float) -> Stacked:
    """Return the statistics (q, ...) of each client's samples, mixed with the global ones by the ``betas`` (q,)."""
    common = {name: value.float() for name, value in common.items()}
    every = [(place, np.arange(len(y))) for place, (_, y) in enumerate(samples)]
    means, apart = deviations(*pad(samples, every, len(common["means"])), common)
    beta = torch.from_numpy(betas).float()[:, None, None]
    covariance = torch.baddbmm((1 - beta) * common["covariance"], (beta * apart).mT, apart)
    covariance.diagonal(dim1=1, dim2=2).add_(ridge * beta[:, 0])
    return {"means": torch.lerp(common["means"], means, beta), "covariance": covariance}


def pad(
    samples: Sequence[Samples], selected: Sequence[tuple[int, NDArray[np.int64]]], classes: int
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


def deviations(z: Tensor, classes: Tensor, common: Params) -> tuple[Tensor, Tensor]:
    """Return the means (..., C, d) of features (..., n, d), and A (..., n, d): A' A is the covariance without ridge.

    ``classes`` (..., n, C) is one at each sample's class; where it and ``z`` are rows of zeros there is no sample. A
    class without samples has its global mean.
    """
    counts = classes.sum(dim=-2)[..., None]
    means = torch.where(counts > 0, classes.mT @ z / counts.clamp(min=1), common["means"])
    freedom = (counts.sum(dim=-2, keepdim=True) - 1).clamp(min=1)
    return means, (z - classes @ means) / freedom.sqrt()


def cross_validate(
    grid: Sequence[float],
    ridge: float,
    samples: Sequence[Samples],
    folds: Sequence[NDArray[np.int64]],
    principal: tuple[Tensor, Params],
    priors: Tensor,
) -> NDArray[np.float64]:
    """Return the beta, of ``grid``, of each of q clients by its ``samples`` and their ``folds`` (n,), 0 or 1.

    It has the lowest cross-entropy if each half of the samples is classified by the statistics of the other half;
    without halves it is 0. ``principal`` is the result of ``principal_axes``, and ``priors`` (q, C) are the logarithms
    of the clients' class frequencies.
    """
    axes, common = principal
    halves = [(place, np.flatnonzero(fold == half)) for half in (0, 1) for place, fold in enumerate(folds)]
    z, true = pad(samples, halves, priors.shape[1])  # (2 q, n, d), those of half 1 behind those of half 0
    z = z @ axes.to(z)
    weight, bias = _heads_of_grid(grid, ridge, z, true, common)
    queries, true = (value.roll(len(folds), dims=0) for value in (z, true))  # of the other half
    logits = (weight.flatten(1, 2) @ queries.mT.to(weight)).view(*weight.shape[:3], -1)  # (2 q, g, C, n)
    # In double precision, as losses near zero may be compared.
    logp = (logits.double() + (bias + priors.repeat(2, 1)[:, None])[..., None]).log_softmax(dim=2)
    losses = -(logp * true.mT[:, None]).sum(dim=(2, 3)) / true.sum(dim=(1, 2)).clamp(min=1)[:, None]
    losses = losses[: len(folds)] + losses[len(folds) :]
    best = np.asarray(grid)[losses.argmin(dim=1).numpy()]
    return np.where([(fold >= 0).any() for fold in folds], best, 0.0)


def _heads_of_grid(
    grid: Sequence[float], ridge: float, z: Tensor, classes: Tensor, common: Params
) -> tuple[Tensor, Tensor]:
    """Return the heads by each beta of the grid, weights (q, g, C, d) and biases (q, g, C), without frequencies.

    Features ``z`` (q, n, d) and the statistics are in principal axes; ``classes`` (q, n, C) is as in ``deviations``.
    With few samples a covariance is a diagonal D plus c A' A of low rank. The Woodbury identity inverts it:
    (D + c A' A)^-1 = D^-1 - D^-1 A' (1 + c A D^-1 A')^-1 c A D^-1.
    """
    (n, d), g = z.shape[1:], len(grid)
    # Few in single precision, which halves the time: a diagonal is inverted exactly, and losses only rank the grid.
    z, classes = (value.double() if 2 * n > d else value.float() for value in (z, classes))
    common, beta = {name: value.to(z) for name, value in common.items()}, z.new_tensor(grid)[:, None, None]
    own_means, apart = deviations(z, classes, common)
    means = torch.lerp(common["means"], own_means[:, None], beta)  # (q, g, C, d)
    if 2 * n > d:
        own = (apart.mT @ apart + ridge * torch.eye(d))[:, None]
        return linear_head({"means": means, "covariance": torch.lerp(common["covariance"], own, beta)})
    variances = torch.lerp(common["covariance"].diagonal(), torch.tensor(ridge), beta)  # (g, 1, d)
    squares = apart.square().sum(dim=(1, 2))[:, None, None, None] / d
    diagonal = (1 - _FLOOR) * variances + _FLOOR * (variances.mean(dim=2, keepdim=True) + beta * squares)
    share = (1 - _FLOOR) * beta
    by_own = ((apart[:, None] / diagonal).flatten(1, 2) @ apart.mT).view(-1, g, n, n)  # (q, g, n, n)
    weight = means / diagonal
    by_means = (weight.flatten(1, 2) @ apart.mT).view(*means.shape[:3], n)  # (q, g, C, n)
    solved = torch.cholesky_solve((share * by_means).mT, torch.linalg.cholesky_ex(torch.eye(n) + share * by_own).L).mT
    weight = weight - (solved.flatten(1, 2) @ apart).view_as(means) / diagonal
    return weight, -(means * weight).sum(dim=-1) / 2
