"""The logarithmic pool of ``pfl stack``: combine predictions of several learners, with exponents fitted on validation.

p(c | x) is proportional to the product over learners m of p_m(c | x)^b_m (logarithmic opinion pool: Genest & Zidek
1986, https://doi.org/10.1214/ss/1177013825), where b minimizes the log-loss on held-out samples (stacking: Wolpert
1992, https://doi.org/10.1016/S0893-6080(05)80023-1). With a single learner this is temperature scaling, b = 1 / T.

Numbers are pooled alike: a quantity as the mean of a normal distribution, whose pool has the mean sum_m b_m p_m
(Breiman, 1996, https://doi.org/10.1007/BF00117832), in standard deviations from the mean of labels; a count as that of
Poisson's, whose logarithm is sum_m b_m log p_m. The loss is the deviance divided by twice the mean deviance of the even
mix, which is the log-loss up to a constant if this is the variance of the noise.

Shapes: n samples, M learners, C classes, m clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pflcli.method import rng
from pflcli.methods.parts.folds import Folds

Floats = NDArray[np.float64]
Logs = NDArray[np.floating[Any]]

STACK = "stack"
"""Method name in the request of a stack."""
BASE = "fedavg"
"""The method whose predictions are those of the global model."""
KEPT = "alone"
"""The method of which a client may keep the predictions, as those of the global model: it learned them alone."""
VOTES, GLOBAL = "knn", "global"
"""Parts of predictions: the neighbour votes, and the predictions of the global model."""

RIDGES = (1.0, 10.0, 100.0)
"""Candidates for the ridge of the common exponents."""
PULLS = (10.0, 50.0, np.inf)
"""Candidates for the ridge of a client's own exponents; with infinity they equal the common ones."""
MARGINS = (0.0, 1.0, 3.0, 10.0, np.inf)
"""Candidates for the log-loss by which `alone` must be better on a client's samples; with infinity none keeps it."""
FOLDS = 3
POOL = -1
"""What a client keeps that keeps no single learner."""
_SMOOTHING = 0.01
"""Weight of the uniform distribution in every prediction: neighbours and local models predict 0, whose log is -inf."""
_LEAST_UNIT = 1e-12
"""The loss of predictions that are exact."""
_DIGITS = 6
"""Decimal places of exponents; rounding removes differences from the order of summation."""
_CHUNK_NUMBERS = 2**22
"""Numbers per chunk of samples."""


@dataclass(frozen=True)
class Rule:
    """How probabilities are pooled: ``x`` (n, M, C) are the inputs of a pool, logarithms of smoothed probabilities."""

    unit: float = 1.0
    """by which losses are divided"""

    def fitted(self, x: Logs, y: NDArray[Any]) -> Rule:
        """Return the rule for the samples that exponents are fitted on."""
        return self

    def read(self, predictions: Sequence[NDArray[np.floating[Any]]]) -> Logs:
        """Return the inputs (n, M, C) from the predictions (n, C) of M learners."""
        return log_probabilities(predictions)

    def answer(self, x: Logs) -> Floats:
        """Return the predictions (n, C) of one learner, from its inputs (n, C)."""
        return np.asarray(np.exp(x))

    def predict(self, x: Logs, exponents: Floats) -> Floats:
        """Return the predictions (n, C) of the pool with exponents (M,), or (n, M) per sample."""
        return predict(x, exponents)

    def losses(self, p: Floats, y: NDArray[Any]) -> Floats:
        """Return the losses (n,) of predictions (n, C), divided by ``unit``."""
        return _loss(p, y)

    def penalized_loss(
        self, x: Logs, y: NDArray[Any], b: Floats, centre: Floats, ridge: float
    ) -> tuple[float, Floats, Floats]:
        """Return the sum of losses + ridge / 2 |b - centre|^2, its gradient (M,) and its Hessian (M, M)."""
        return penalized_loss(x, y, b, centre, ridge)


PROBABILITIES = Rule()


@dataclass(frozen=True)
class Numbers(Rule):
    """How predictions of a ``task`` are pooled; inputs are the outputs (n, M, 1) of models that predict them."""

    task: Any = None
    """an object of ``Task``"""

    def fitted(self, x: Logs, y: NDArray[Any]) -> Rule:
        """Return the rule with twice the mean loss of the even mix as ``unit``."""
        if not len(y):
            return self
        even = np.full(x.shape[1], 1 / x.shape[1])
        return replace(self, unit=max(2 * float(self.task.curve(_mix(x, even), y)[0].mean()), _LEAST_UNIT))

    def read(self, predictions: Sequence[NDArray[np.floating[Any]]]) -> Logs:
        """Return the outputs (n, M, 1) that predict the same."""
        return np.stack([self.task.link(p) for p in predictions], axis=1)[:, :, None]

    def answer(self, x: Logs) -> Floats:
        """Return the predictions by outputs (n, 1)."""
        p: Floats = self.task.predict(torch.from_numpy(np.asarray(x, np.float64))).astype(np.float64)
        return p

    def predict(self, x: Logs, exponents: Floats) -> Floats:
        """Return the predictions by the weighted sum of outputs."""
        return self.answer(_mix(x, exponents)[:, None])

    def losses(self, p: Floats, y: NDArray[Any]) -> Floats:
        """Return 1 minus the scores (n,), divided by ``unit``."""
        return np.asarray((1 - self.task.scores(p.astype(np.float32), y)) / self.unit)

    def penalized_loss(
        self, x: Logs, y: NDArray[Any], b: Floats, centre: Floats, ridge: float
    ) -> tuple[float, Floats, Floats]:
        """Return the sum of the task's ``curve`` with the penalty, and its derivatives by the exponents."""
        known = x[:, :, 0].astype(np.float64)
        losses, slope, curvature = (values / self.unit for values in self.task.curve(known @ b, y))
        value = ridge / 2 * float(((b - centre) ** 2).sum()) + float(losses.sum())
        hessian = ridge * np.eye(len(b)) + (known * curvature[:, None]).T @ known
        return value, ridge * (b - centre) + slope @ known, hessian


def _mix(x: Logs, exponents: Floats) -> Floats:
    """Return the weighted sums (n,) of inputs (n, M, 1), with exponents (M,), or (n, M) per sample."""
    return np.asarray((x[:, :, 0] * exponents).sum(axis=1), np.float64)


def choose_rule(task: Any) -> Rule:
    """Return the rule that pools predictions of a ``Task``."""
    return PROBABILITIES if task.kind == "classes" else Numbers(task=task)


@dataclass(frozen=True)
class Pool:
    """A fitted pool: common ``exponents`` (M,), ``own`` (m, M) exponents per client, and the chosen ridges.

    ``kept`` (m,) is the learner that a client keeps, or ``POOL``. ``held_out`` (n, C) are the cross-validated
    predictions: each sample is predicted with exponents fitted without its fold, and ``kept_held_out`` (n,) is what its
    client keeps by its other folds. ``loss`` and ``base_losses`` are the mean log-loss, or 1 minus the mean score of
    numbers, of the held-out predictions and of each learner that a client may keep.
    """

    exponents: Floats
    own: Floats
    ridge: float
    pull: float
    kept: NDArray[np.int64]
    held_out: Floats
    kept_held_out: NDArray[np.int64]
    loss: float
    base_losses: tuple[float, ...]


def select_members(predictions: Sequence[Mapping[str, NDArray[Any]]], methods: Sequence[str]) -> list[NDArray[Any]]:
    """Return the predictions (n, C) that a stack pools: each method's votes or probabilities, then the global model.

    ``predictions`` has the parts of each of the ``methods``. The global model is added if a method stores its
    predictions and ``BASE`` is not among the methods.
    """
    shared = [] if BASE in methods else [parts[GLOBAL] for parts in predictions if GLOBAL in parts]
    return [*(parts.get(VOTES, parts["p"]) for parts in predictions), *shared[:1]]


def log_probabilities(predictions: Sequence[NDArray[np.floating[Any]]]) -> NDArray[np.float32]:
    """Return the logarithms (n, M, C) of the smoothed predictions (n, C) of M learners."""
    classes = predictions[0].shape[1]
    smooth = (np.stack(predictions, axis=1).astype(np.float64) + _SMOOTHING / classes) / (1 + _SMOOTHING)
    logs: NDArray[np.float32] = np.log(smooth).astype(np.float32)
    return logs


def predict(logs: Logs, exponents: Floats) -> Floats:
    """Return the pool's probabilities (n, C) for ``logs`` (n, M, C) and exponents (M,), or (n, M) per sample."""
    scores = np.einsum("nmc,nm->nc", logs, np.broadcast_to(exponents, logs.shape[:2]), dtype=np.float64)
    shares = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf))
    total: Floats = shares / shares.sum(axis=1, keepdims=True)
    return total


def fit_exponents(logs: Logs, y: NDArray[Any], centre: Floats, ridge: float, rule: Rule = PROBABILITIES) -> Floats:
    """Return the exponents b (M,) that minimize the sum of losses + ridge / 2 |b - centre|^2.

    The problem is strictly convex; it is solved by Newton's method with backtracking.
    """
    b = centre.astype(np.float64).copy()
    value, gradient, hessian = rule.penalized_loss(logs, y, b, centre, ridge)
    for _ in range(100):
        step = np.linalg.solve(hessian, -gradient)
        if np.abs(step).max() < 1e-9:
            break
        share, least = 1.0, 1e-9
        while share > least:
            ahead = rule.penalized_loss(logs, y, b + share * step, centre, ridge)
            if ahead[0] <= value + 1e-4 * share * float(gradient @ step) + 1e-12 * abs(value):
                break
            share /= 2
        else:
            break
        b, (value, gradient, hessian) = b + share * step, ahead
    return b


def penalized_loss(
    logs: Logs, y: NDArray[np.int64], b: Floats, centre: Floats, ridge: float
) -> tuple[float, Floats, Floats]:
    """Return the penalized log-loss at exponents ``b``, its gradient (M,) and its Hessian (M, M)."""
    value = ridge / 2 * float(((b - centre) ** 2).sum())
    gradient, hessian = ridge * (b - centre), ridge * np.eye(len(b))
    for part in _chunks(logs):
        known, label = logs[part].astype(np.float64), y[part]
        p, at = predict(logs[part], b), np.arange(len(label))
        mean = np.einsum("nmc,nc->nm", known, p)
        value -= float(np.log(np.maximum(p[at, label], np.finfo(np.float64).tiny)).sum())
        gradient += (mean - known[at, :, label]).sum(axis=0)
        hessian += np.tensordot(known * p[:, None], known, ((0, 2), (0, 2))) - mean.T @ mean
    return value, gradient, hessian


def fit_pool(
    logs: Logs,
    y: NDArray[Any],
    offsets: NDArray[np.int64],
    *,
    base: int | None,
    alone: int | None = None,
    own: bool = False,
    unseen: NDArray[np.bool_] | None = None,
    seed: int = 0,
    rule: Rule = PROBABILITIES,
) -> Pool:
    """Fit a pool on the samples ``logs`` (n, M, C), ``y`` (n,) of m clients, grouped by client at ``offsets`` (m + 1,).

    Common exponents are fitted with a ridge towards 1 / M; with ``own`` each client's exponents are fitted with a ridge
    towards the common ones. Both ridges are chosen by cross-validated log-loss, with folds within clients. A client
    whose held-out log-loss is not lower than that of the learner ``base`` keeps this learner; without ``base`` all
    clients are pooled. Those keep the learner ``alone`` instead for which it is better by a margin, which is chosen as
    the ridges are, by all clients together. ``unseen`` (m,) clients do not contribute to the common exponents. A client
    without samples is pooled with the common exponents. ``rule`` says what is pooled, by default probabilities.
    """
    client = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    fold = _draw_folds(offsets, seed)
    teaches = np.ones(len(y), np.bool_) if unseen is None else ~unseen[client]
    even, rule = np.full(logs.shape[1], 1 / logs.shape[1]), rule.fitted(logs[teaches], y[teaches])
    least = np.inf
    ridge, apart = RIDGES[0], [even] * FOLDS
    for tried in RIDGES:
        parts = [
            fit_exponents(logs[rest], y[rest], even, tried, rule)
            for j in range(FOLDS)
            for rest in [(fold != j) & teaches]
        ]
        loss = rule.losses(rule.predict(logs, np.stack(parts)[fold]), y)[teaches].sum() if len(y) else 0.0
        if loss < least - 1e-9:
            least, ridge, apart = loss, tried, parts
    common = np.round(fit_exponents(logs[teaches], y[teaches], even, ridge, rule), _DIGITS)
    by_sample = np.stack(apart)[fold]
    pull, each = np.inf, np.tile(common, (len(offsets) - 1, 1))
    if own:
        least = np.inf
        for tried in sorted(PULLS, reverse=True):
            per_client = np.stack(
                [_fit_clients(logs, y, client, fold != j, apart[j], tried, len(each), rule) for j in range(FOLDS)]
            )
            loss = rule.losses(rule.predict(logs, per_client[fold, client]), y).sum()
            if loss < least - 1e-9:
                least, pull, by_sample = loss, tried, per_client[fold, client]
        all_samples = np.ones(len(y), np.bool_)
        each = np.round(_fit_clients(logs, y, client, all_samples, common, pull, len(each), rule), _DIGITS)
    held_out = rule.predict(logs, by_sample)
    loss_of_pool = rule.losses(held_out, y)
    learners = [at for at in (base, alone) if at is not None]
    losses = {POOL: loss_of_pool} | {at: rule.losses(rule.answer(logs[:, at].astype(np.float64)), y) for at in learners}
    kept, kept_held_out = _choose_kept(losses, Folds(client, fold, len(each)), base, alone)
    of_pool, *of_learners = (rule.unit * float(values.mean()) if len(y) else np.nan for values in losses.values())
    return Pool(common, each, ridge, pull, kept, held_out, kept_held_out, of_pool, tuple(of_learners))


def _choose_kept(
    losses: Mapping[int, Floats], folds: Folds, base: int | None, alone: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return what each client keeps (m,), and for each sample (n,) what it keeps by its other folds.

    ``losses`` (n,) are those of the pool and of each learner that may be kept.
    """
    sums, least = {at: folds.sum(values) for at, values in losses.items()}, np.inf
    for margin in (np.inf,) if alone is None else sorted(MARGINS, reverse=True):
        by_client, apart = (_keep({at: pair[k] for at, pair in sums.items()}, base, alone, margin) for k in (0, 1))
        by_sample = folds.pick(apart)
        loss = float(sum(values[by_sample == at].sum() for at, values in losses.items()))
        if loss < least - 1e-9:
            least, kept, kept_held_out = loss, by_client, by_sample
    return kept, kept_held_out


def _keep(losses: Mapping[int, Floats], base: int | None, alone: int | None, margin: float) -> NDArray[np.int64]:
    """Return what clients keep (m, ...) by their ``losses`` (m, ...) under the pool and under each learner.

    A client without samples has no losses, and keeps the pool.
    """
    kept, least = np.full(losses[POOL].shape, POOL), losses[POOL]
    if base is not None:
        kept = np.where((losses[base] - least > 1e-9) | (losses[base] == 0), POOL, base)
        least = np.where(kept == base, losses[base], least)
    return kept if alone is None else np.where(least - losses[alone] > margin + 1e-9, alone, kept)


def _fit_clients(
    logs: Logs,
    y: NDArray[Any],
    client: NDArray[np.int64],
    chosen: NDArray[np.bool_],
    common: Floats,
    pull: float,
    count: int,
    rule: Rule,
) -> Floats:
    """Return the exponents (m, M) of each client, fitted on its ``chosen`` (n,) samples."""
    per_client = np.tile(common, (count, 1))
    if np.isfinite(pull):
        for number in np.unique(client[chosen]):
            rows = chosen & (client == number)
            per_client[number] = fit_exponents(logs[rows], y[rows], common, pull, rule)
    return per_client


def _draw_folds(offsets: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Return the fold (n,) of each sample; each client's samples are spread evenly over the folds."""
    folds = [np.empty(0, np.int64)]
    for client, size in enumerate(np.diff(offsets)):
        draw = rng.generator(seed, "folds of a stack", client)
        folds.append(draw.permutation((np.arange(size) + draw.integers(FOLDS)) % FOLDS))
    return np.concatenate(folds).astype(np.int64)


def _loss(p: Floats, y: NDArray[np.int64]) -> Floats:
    """Return the log-loss (n,) of probabilities (n, C)."""
    loss: Floats = -np.log(np.maximum(p[np.arange(len(y)), y], np.finfo(np.float64).tiny))
    return loss


def _chunks(logs: Logs) -> list[slice]:
    """Return slices of samples that bound the memory of intermediate results."""
    size = max(1, _CHUNK_NUMBERS // (logs.shape[1] * logs.shape[2]))
    return [slice(first, first + size) for first in range(0, len(logs), size)]
