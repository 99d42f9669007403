"""Membership inference: scores of attacks, ROC curves, and intervals of the AUC.

A *member* is a sample that the model was trained on. An attack gives each sample a score that is higher the more likely
the sample is a member. The area under the ROC curve (AUC) is the probability that a random member scores higher than a
random non-member; ties count half (Hanley & McNeil 1982, https://doi.org/10.1148/radiology.143.1.7063747). Guessing
gives 0.5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FLOOR = 1e-30
"""Smallest probability, so that its logarithm is finite."""

LEAST_LOSS = 1e-8
"""Smallest loss of a number, such as the square of an error of a ten-thousandth of a deviation."""

Z = 1.959963984540054
"""The normal quantile of two-sided 95 % intervals."""

Scores = NDArray[np.float64]
Mask = NDArray[np.bool_]


def scaled_logits(p: NDArray[np.floating], y: NDArray[np.int64], floor: float = FLOOR) -> Scores:
    """Return log(p_y / (1 - p_y)) (n,) of probabilities (n, C) and labels (n,).

    Carlini et al. (2022), https://arxiv.org/abs/2112.03570, section V-B. 1 - p_y is computed as the sum over the other
    classes to avoid cancellation. The scaled logit orders samples like the loss (Yeom et al. 2018,
    https://arxiv.org/abs/1709.01604), and is closer to a normal distribution. Probabilities below ``floor`` are raised
    to ``floor``.
    """
    wide = np.asarray(p, dtype=np.float64)
    rows = np.arange(len(y))
    own = wide[rows, y]
    others = wide.copy()
    others[rows, y] = 0.0
    return np.asarray(np.log(np.maximum(own, floor)) - np.log(np.maximum(others.sum(axis=1), floor)))


def score_numbers(task: Any, p: NDArray[np.floating], y: NDArray[Any]) -> Scores:
    """Return minus the logarithm of the loss (n,), 1 minus the score, of predictions (n, C) that are no probabilities.

    A model often predicts numbers that it was trained on with a lower loss (Yeom et al. 2018, section 3). Losses below
    ``LEAST_LOSS`` are raised to it.
    """
    loss = 1 - np.asarray(task.scores(np.asarray(p, np.float32), y), np.float64)
    return np.asarray(-np.log(np.maximum(loss, LEAST_LOSS)))


def likelihood_ratios(scores: Scores, references: Scores, learned: Mask) -> Scores:
    """Return log(f_in / f_out) (n,) of ``scores`` (n,), given those of R reference models, (R, n).

    ``learned`` (R, n) marks the samples that each reference was trained on. This is the online attack of Carlini et al.
    (2022), Algorithm 1, with variances shared by all samples, as they recommend for few models. The uncertainty of a
    mean over k models widens its density by 1 + 1 / k. If all models were trained on a sample, or none, the missing
    mean is the other one plus the mean difference over the samples that have both.
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

    The interval is Newcombe's (2006, https://doi.org/10.1002/sim.2324, method 5), which has a positive width even at an
    AUC of 1. Samples of the same client in ``clients`` (n,) are dependent. The effective sample size is therefore
    reduced by the ratio of the variances with clusters (Obuchowski 1997, https://doi.org/10.2307/2533958) and without
    (DeLong et al. 1988, https://doi.org/10.2307/2531595).
    """
    count, others = int(member.sum()), int((~member).sum())
    if not (count and others):
        return None
    placed = _placements(scores, member)
    value = float(placed[member].mean())
    effect = 1.0 if clients is None else _design_effect(placed, member, clients, value)
    return Area(value, *_newcombe(value, count / effect, others / effect))


def _placements(scores: Scores, member: Mask) -> Scores:
    """Return for each member the share of non-members that score lower, for each non-member that of members above."""
    placed = np.empty(len(scores))
    for own, sign in ((member, 1.0), (~member, -1.0)):
        against = np.sort(sign * scores[~own])
        values = sign * scores[own]
        below = np.searchsorted(against, values, "left") + np.searchsorted(against, values, "right")
        placed[own] = below / (2 * len(against))
    return placed


def _design_effect(placed: Scores, member: Mask, clients: NDArray[np.int64], value: float) -> float:
    """Return the factor by which clustering by client increases the variance of the AUC, at least 1."""
    _, owner = np.unique(clients, return_inverse=True)
    m = int(owner.max()) + 1
    if m < 2:
        return 1.0
    sums = np.stack([np.bincount(owner[own], placed[own] - value, m) / own.sum() for own in (member, ~member)])
    clustered = m / (m - 1) * float((sums.sum(axis=0) ** 2).sum())
    independent = sum(float(((placed[own] - value) ** 2).sum()) / own.sum() ** 2 for own in (member, ~member))
    return max(1.0, clustered / independent) if independent > 0 else 1.0


def _newcombe(value: float, members: float, others: float) -> tuple[float, float]:
    """Return both areas theta from which ``value`` is Z standard deviations away, by Hanley & McNeil's variance."""
    half = (members + others) / 2 - 1

    def distance(theta: float) -> float:
        spread = theta * (1 - theta) * (1 + half * ((1 - theta) / (2 - theta) + theta / (1 + theta)))
        return float((value - theta) ** 2 - Z**2 * max(spread, 0.0) / (members * others))

    return _bisect(distance, value, 0.0), _bisect(distance, value, 1.0)


def _bisect(distance: Callable[[float], float], inside: float, outside: float) -> float:
    """Return the root of ``distance`` between ``inside``, where it is at most 0, and ``outside``; else ``outside``."""
    if distance(outside) <= 0:
        return outside
    for _ in range(60):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if distance(middle) <= 0 else (inside, middle)
    return (inside + outside) / 2


@dataclass(frozen=True)
class Rate:
    """A true-positive rate at a given false-positive rate, with its Clopper-Pearson 95 % interval at that threshold."""

    value: float
    low: float
    high: float


def true_positive_rate(scores: Scores, member: Mask, false: float) -> Rate | None:
    """Return the true-positive rate at the false-positive rate ``false``.

    None without members, or if ``false`` is less than one non-member.
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


def roc_curve(scores: Scores, member: Mask) -> tuple[Scores, Scores]:
    """Return the ROC curve: false- and true-positive rates (k,) from 0 to 1, by falling threshold."""
    order = np.argsort(-scores, kind="stable")
    is_last = np.append(np.diff(scores[order]) != 0, True)
    false, true = (np.append(0.0, np.cumsum(own[order])[is_last] / max(own.sum(), 1)) for own in (~member, member))
    return false, true


def balance_members(member: Mask, draws: Sequence[tuple[NDArray[np.int64], np.random.Generator]]) -> NDArray[np.int64]:
    """Draw rows with equally many members and non-members of each client; they are returned sorted.

    ``draws`` has each client's rows and random generator. Without balance, an attacker could gain merely by recognizing
    clients with many members.
    """
    chosen = [np.zeros(0, np.int64)]
    for rows, draw in draws:
        sides = [rows[member[rows]], rows[~member[rows]]]
        count = min(map(len, sides))
        chosen += [draw.permutation(side)[:count] for side in sides]
    return np.sort(np.concatenate(chosen))
