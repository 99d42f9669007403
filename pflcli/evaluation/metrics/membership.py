"""How well an attacker tells samples that a model has learned from others: scores of attacks, ROC curves, intervals.

An attacker gives each sample a score, the higher the more it takes it for a *member*, a sample that the model was
trained on. The area under the ROC curve (AUC) is the probability that a random member scores higher than a random
non-member, ties counted half (Hanley & McNeil 1982, https://doi.org/10.1148/radiology.143.1.7063747): 0.5 is a guess.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FLOOR = 1e-30
"""The least probability, so that its logarithm is finite."""

Z = 1.959963984540054
"""The normal quantile of two-sided 95 % intervals."""

Scores = NDArray[np.float64]
Mask = NDArray[np.bool_]


def scaled_logits(p: NDArray[np.floating], y: NDArray[np.int64], floor: float = FLOOR) -> Scores:
    """Return log(p_y / (1 - p_y)) (n,) of probabilities (n, C) and labels (n,).

    Carlini et al. (2022), https://arxiv.org/abs/2112.03570, section V-B. 1 - p_y is summed over the other classes,
    which keeps digits that rounding would lose. It orders samples as the loss does (Yeom et al. 2018,
    https://arxiv.org/abs/1709.01604), and is nearer to a normal distribution. No probability counts as less than
    ``floor``.
    """
    wide = np.asarray(p, dtype=np.float64)
    rows = np.arange(len(y))
    own = wide[rows, y]
    others = wide.copy()
    others[rows, y] = 0.0
    return np.asarray(np.log(np.maximum(own, floor)) - np.log(np.maximum(others.sum(axis=1), floor)))


def likelihood_ratios(scores: Scores, references: Scores, learned: Mask) -> Scores:
    """Return log(f_in / f_out) (n,) of ``scores`` (n,), given those of R reference models, (R, n).

    ``learned`` (R, n) says which of them were trained on which sample. It is the online attack of Carlini et al.
    (2022), Algorithm 1, with variances common to all samples, as they advise where models are few. A mean over k models
    is uncertain itself, which widens its density by 1 + 1 / k. Where all models have learned a sample, or none has, the
    missing mean is the other one shifted by the mean difference over all samples that have both.
    """
    counts = [learned.sum(axis=0), (~learned).sum(axis=0)]
    means, variances = [], []
    for mask, count in zip((learned, ~learned), counts, strict=True):
        mean = np.divide(np.where(mask, references, 0.0).sum(axis=0), count, where=count > 0, out=np.zeros(len(scores)))
        freedom = np.maximum(count - 1, 0).sum()
        squares = float((np.where(mask, references - mean, 0.0) ** 2).sum())
        means.append(mean)
        variances.append(squares / freedom if freedom else math.nan)
    known = [value for value in variances if value > 0]
    variances = [value if value > 0 else max(known, default=1.0) for value in variances]
    both = (counts[0] > 0) & (counts[1] > 0)
    shift = float((means[0] - means[1])[both].mean()) if both.any() else 0.0
    inside = np.where(counts[0] > 0, means[0], means[1] + shift)
    outside = np.where(counts[1] > 0, means[1], means[0] - shift)
    of_means = [np.where(own > 0, own, other) for own, other in (counts, counts[::-1])]
    logs = []
    for mean, variance, count in zip((inside, outside), variances, of_means, strict=True):
        wide = variance * (1 + 1 / np.maximum(count, 1))
        logs.append(-0.5 * np.log(wide) - (scores - mean) ** 2 / (2 * wide))
    return np.asarray(logs[0] - logs[1])


@dataclass(frozen=True)
class Area:
    """An area under a ROC curve with its 95 % interval."""

    value: float
    low: float
    high: float


def area(scores: Scores, member: Mask, clients: NDArray[np.int64] | None = None) -> Area | None:
    """Return the AUC of ``scores`` (n,) with its 95 % interval; None without members or without non-members.

    The interval is Newcombe's (2006, https://doi.org/10.1002/sim.2324, method 5), which is not empty at an AUC of 1
    either. Samples of one of the ``clients`` (n,) depend on each other: it is then as wide as if there were fewer
    samples, by the ratio of the variances that Obuchowski (1997, https://doi.org/10.2307/2533958) and DeLong et al.
    (1988, https://doi.org/10.2307/2531595) give with and without them.
    """
    count, others = int(member.sum()), int((~member).sum())
    if not (count and others):
        return None
    placed = _placements(scores, member)
    value = float(placed[member].mean())
    effect = 1.0 if clients is None else _design_effect(placed, member, clients, value)
    return Area(value, *_newcombe(value, count / effect, others / effect))


def _placements(scores: Scores, member: Mask) -> Scores:
    """Return for each member the share of non-members that score lower, for each non-member that of higher members."""
    placed = np.empty(len(scores))
    for own, sign in ((member, 1.0), (~member, -1.0)):
        against = np.sort(sign * scores[~own])
        values = sign * scores[own]
        below = np.searchsorted(against, values, "left") + np.searchsorted(against, values, "right")
        placed[own] = below / (2 * len(against))
    return placed


def _design_effect(placed: Scores, member: Mask, clients: NDArray[np.int64], value: float) -> float:
    """Return by what factor clients widen the variance of an AUC, 1 at least."""
    _, owner = np.unique(clients, return_inverse=True)
    m = int(owner.max()) + 1
    if m < 2:
        return 1.0
    sums = np.stack([np.bincount(owner[own], placed[own] - value, m) / own.sum() for own in (member, ~member)])
    clustered = m / (m - 1) * float((sums.sum(axis=0) ** 2).sum())
    independent = sum(float(((placed[own] - value) ** 2).sum()) / own.sum() ** 2 for own in (member, ~member))
    return max(1.0, clustered / independent) if independent > 0 else 1.0


def _newcombe(value: float, members: float, others: float) -> tuple[float, float]:
    """Return the areas theta at which ``value`` lies Z standard deviations away, by Hanley & McNeil's variance."""
    half = (members + others) / 2 - 1

    def distance(theta: float) -> float:
        spread = theta * (1 - theta) * (1 + half * ((1 - theta) / (2 - theta) + theta / (1 + theta)))
        return float((value - theta) ** 2 - Z**2 * max(spread, 0.0) / (members * others))

    return _root(distance, value, 0.0), _root(distance, value, 1.0)


def _root(distance: Callable[[float], float], inside: float, outside: float) -> float:
    """Return the place between a point where ``distance`` is at most 0 and an end where it is not, by bisection."""
    if distance(outside) <= 0:
        return outside
    for _ in range(60):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if distance(middle) <= 0 else (inside, middle)
    return (inside + outside) / 2


@dataclass(frozen=True)
class Rate:
    """The share of members that are found where at most some share of non-members is taken for one.

    The 95 % interval is Clopper and Pearson's, given the threshold.
    """

    value: float
    low: float
    high: float


def true_positives(scores: Scores, member: Mask, false: float) -> Rate | None:
    """Return the share of members above the least threshold that at most a share ``false`` of non-members exceeds.

    None without members, or with so few non-members that less than one of them is that share.
    """
    outside = -np.sort(-scores[~member])
    allowed = math.floor(false * len(outside) + 1e-9)
    count = int(member.sum())
    if not (count and allowed):
        return None
    from scipy.stats import beta

    above = int((scores[member] > outside[allowed]).sum()) if allowed < len(outside) else count
    low = float(beta.ppf(0.025, above, count - above + 1)) if above else 0.0
    high = float(beta.ppf(0.975, above + 1, count - above)) if above < count else 1.0
    return Rate(above / count, low, high)


def curve(scores: Scores, member: Mask) -> tuple[Scores, Scores]:
    """Return the ROC curve: shares of non-members and of members (k,) above falling thresholds, from 0 to 1."""
    order = np.argsort(-scores, kind="stable")
    is_last = np.append(np.diff(scores[order]) != 0, True)
    false, true = (np.append(0.0, np.cumsum(own[order])[is_last] / max(own.sum(), 1)) for own in (~member, member))
    return false, true


def balanced(member: Mask, draws: Sequence[tuple[NDArray[np.int64], np.random.Generator]]) -> NDArray[np.int64]:
    """Return rows with as many members as non-members of each client, sorted.

    ``draws`` has each client's rows and random numbers. Otherwise a client with more members would let an attacker
    gain that only knows which clients are easy.
    """
    chosen = [np.zeros(0, np.int64)]
    for rows, draw in draws:
        sides = [rows[member[rows]], rows[~member[rows]]]
        count = min(map(len, sides))
        chosen += [draw.permutation(side)[:count] for side in sides]
    return np.sort(np.concatenate(chosen))
