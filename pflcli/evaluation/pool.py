"""A logarithmic pool of the answers of several learners, its exponents learned on validation samples. No files.

p(c | x) is proportional to the product over learners m of p_m(c | x)^b_m (logarithmic opinion pool: Genest & Zidek
1986, https://doi.org/10.1214/ss/1177013825), where b minimizes the log-loss on held-out samples (stacking: Wolpert
1992, https://doi.org/10.1016/S0893-6080(05)80023-1). Of one learner alone that is temperature scaling with b = 1 / T.

Shapes: n samples, M learners, C classes, m clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli import rng

Floats = NDArray[np.float64]

RIDGES = (1.0, 10.0, 100.0)
"""What the ridge of the common exponents is chosen from."""
PULLS = (10.0, 50.0, np.inf)
"""What the ridge of clients' own exponents is chosen from; infinity makes them the common ones."""
FOLDS = 3
_SMOOTHING = 0.01
"""Share of the uniform distribution in every answer: neighbours and local models answer 0, which has no logarithm."""
_DIGITS = 6
"""Digits of exponents behind the point, so that the order in which sums are taken moves none of them."""
_NUMBERS = 2**22
"""Numbers that are worked on at a time."""


@dataclass(frozen=True)
class Pool:
    """What was learned: ``exponents`` (M,) of all clients, ``own`` (m, M) of each, and by what they were chosen.

    ``pooled`` (m,) says which clients the pool answers; the others keep the base. ``held_out`` (n, C) are the pool's
    answers to the samples that it was learned on, each by exponents that were learned without the sample's fold.
    ``loss`` and ``base_loss`` are the mean log-loss of these and of the base.
    """

    exponents: Floats
    own: Floats
    ridge: float
    pull: float
    pooled: NDArray[np.bool_]
    held_out: Floats
    loss: float
    base_loss: float


def logarithms(answers: Sequence[NDArray[np.floating[Any]]]) -> NDArray[np.float32]:
    """Return the logarithms (n, M, C) of smoothed answers, of M learners (n, C) each."""
    classes = answers[0].shape[1]
    smooth = (np.stack(answers, axis=1).astype(np.float64) + _SMOOTHING / classes) / (1 + _SMOOTHING)
    logs: NDArray[np.float32] = np.log(smooth).astype(np.float32)
    return logs


def answer(logs: NDArray[np.float32], exponents: Floats) -> Floats:
    """Return the pool's probabilities (n, C) for ``logs`` (n, M, C) and exponents (M,), or (n, M) by sample."""
    scores = np.einsum("nmc,nm->nc", logs, np.broadcast_to(exponents, logs.shape[:2]), dtype=np.float64)
    shares = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf))
    total: Floats = shares / shares.sum(axis=1, keepdims=True)
    return total


def fit(logs: NDArray[np.float32], y: NDArray[np.int64], centre: Floats, ridge: float) -> Floats:
    """Return the exponents (M,) of least sum of log-losses + ridge / 2 |b - centre|^2, a strictly convex problem.

    By Newton's method with steps halved until the cost falls.
    """
    b = centre.astype(np.float64).copy()
    value, slope, bend = cost(logs, y, b, centre, ridge)
    for _ in range(100):
        move = np.linalg.solve(bend, -slope)
        if np.abs(move).max() < 1e-9:
            break
        share, least = 1.0, 1e-9
        while share > least:
            ahead = cost(logs, y, b + share * move, centre, ridge)
            if ahead[0] <= value + 1e-4 * share * float(slope @ move) + 1e-12 * abs(value):
                break
            share /= 2
        else:
            break
        b, (value, slope, bend) = b + share * move, ahead
    return b


def cost(
    logs: NDArray[np.float32], y: NDArray[np.int64], b: Floats, centre: Floats, ridge: float
) -> tuple[float, Floats, Floats]:
    """Return the penalized log-loss at exponents ``b``, its gradient (M,) and its Hessian (M, M)."""
    value = ridge / 2 * float(((b - centre) ** 2).sum())
    slope, bend = ridge * (b - centre), ridge * np.eye(len(b))
    for part in _parts(logs):
        known, label = logs[part].astype(np.float64), y[part]
        p, at = answer(logs[part], b), np.arange(len(label))
        mean = np.einsum("nmc,nc->nm", known, p)
        value -= float(np.log(np.maximum(p[at, label], np.finfo(np.float64).tiny)).sum())
        slope += (mean - known[at, :, label]).sum(axis=0)
        bend += np.tensordot(known * p[:, None], known, ((0, 2), (0, 2))) - mean.T @ mean
    return value, slope, bend


def learn(
    logs: NDArray[np.float32],
    y: NDArray[np.int64],
    offsets: NDArray[np.int64],
    *,
    base: int | None,
    own: bool = False,
    unseen: NDArray[np.bool_] | None = None,
    seed: int = 0,
) -> Pool:
    """Learn a pool from the samples ``logs`` (n, M, C), ``y`` (n,) of m clients, whose blocks begin at ``offsets``.

    Common exponents with a ridge towards 1 / M; with ``own`` those of each client with a ridge towards the common
    ones. Both ridges are chosen by the log-loss in folds within clients. A client whose held-out log-loss is no lower
    than that of the learner ``base`` keeps that; without a ``base`` all are pooled. Exponents of all
    are learned from clients that are not ``unseen`` (m,). A client without samples is pooled, by the common exponents.
    """
    client = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    fold = _folds(offsets, seed)
    teaches = np.ones(len(y), np.bool_) if unseen is None else ~unseen[client]
    even = np.full(logs.shape[1], 1 / logs.shape[1])
    least = np.inf
    ridge, apart = RIDGES[0], [even] * FOLDS
    for tried in RIDGES:
        parts = [fit(logs[rest], y[rest], even, tried) for j in range(FOLDS) for rest in [(fold != j) & teaches]]
        loss = _loss(answer(logs, np.stack(parts)[fold]), y)[teaches].sum() if len(y) else 0.0
        if loss < least - 1e-9:
            least, ridge, apart = loss, tried, parts
    common = np.round(fit(logs[teaches], y[teaches], even, ridge), _DIGITS)
    by_sample = np.stack(apart)[fold]
    pull, each = np.inf, np.tile(common, (len(offsets) - 1, 1))
    if own:
        least = np.inf
        for tried in sorted(PULLS, reverse=True):
            per_client = np.stack([_own(logs, y, client, fold != j, apart[j], tried, len(each)) for j in range(FOLDS)])
            loss = _loss(answer(logs, per_client[fold, client]), y).sum()
            if loss < least - 1e-9:
                least, pull, by_sample = loss, tried, per_client[fold, client]
        all_samples = np.ones(len(y), np.bool_)
        each = np.round(_own(logs, y, client, all_samples, common, pull, len(each)), _DIGITS)
    held_out = answer(logs, by_sample)
    loss_of_pool = _loss(held_out, y)
    alone = _loss(np.exp(logs[:, 0 if base is None else base].astype(np.float64)), y)
    gain = np.bincount(client, alone - loss_of_pool, len(each))
    pooled = (gain > 1e-9) | (np.diff(offsets) == 0) if base is not None else np.ones(len(each), np.bool_)
    mean = [float(losses.mean()) if len(y) else np.nan for losses in (loss_of_pool, alone)]
    return Pool(common, each, ridge, pull, pooled, held_out, *mean)


def _own(
    logs: NDArray[np.float32],
    y: NDArray[np.int64],
    client: NDArray[np.int64],
    chosen: NDArray[np.bool_],
    common: Floats,
    pull: float,
    count: int,
) -> Floats:
    """Return exponents (m, M), one row per client, learned from its samples that are ``chosen`` (n,)."""
    per_client = np.tile(common, (count, 1))
    if np.isfinite(pull):
        for number in np.unique(client[chosen]):
            rows = chosen & (client == number)
            per_client[number] = fit(logs[rows], y[rows], common, pull)
    return per_client


def _folds(offsets: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Return the fold (n,) of each sample: each client's samples are spread over all folds as evenly as can be."""
    folds = [np.empty(0, np.int64)]
    for client, size in enumerate(np.diff(offsets)):
        draw = rng.generator(seed, "folds of a stack", client)
        folds.append(draw.permutation((np.arange(size) + draw.integers(FOLDS)) % FOLDS))
    return np.concatenate(folds).astype(np.int64)


def _loss(p: Floats, y: NDArray[np.int64]) -> Floats:
    """Return the log-loss (n,) of probabilities (n, C)."""
    loss: Floats = -np.log(np.maximum(p[np.arange(len(y)), y], np.finfo(np.float64).tiny))
    return loss


def _parts(logs: NDArray[np.float32]) -> list[slice]:
    """Return slices of samples that are worked on at a time."""
    size = max(1, _NUMBERS // (logs.shape[1] * logs.shape[2]))
    return [slice(first, first + size) for first in range(0, len(logs), size)]
