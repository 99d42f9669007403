"""Split-conformal prediction sets, with thresholds computed from validation samples.

The score of a class is 1 - p(class): LAC, Sadinle, Lei & Wasserman (2019), https://doi.org/10.1080/01621459.2017.1395341.
Among all sets with the same coverage over samples, LAC has the smallest mean size if the probabilities are correct, and
it needs no random numbers. APS (Romano, Sesia & Candès, 2020) needs random numbers to reach the level exactly, so the
same sample could get different sets.

A threshold is a weighted quantile of the scores of validation labels. A score of the client itself has weight 1, and a
score of another client has weight w. The test sample has weight 1 and an infinite score (Barber, Candès, Ramdas &
Tibshirani, 2023, https://doi.org/10.1214/23-AOS2276). The three rules differ in w: w = 0 (own), w = 1 (pooled), and a
value between them (shrunk), with which all other clients' samples together count as ``pseudo_count`` samples.

The score of a number is its distance from the prediction, so that sets are intervals (Lei et al., 2018,
https://doi.org/10.1080/01621459.2017.1307116).
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.errors import UsageError, closest

Array = NDArray[Any]
Floats = NDArray[np.float64]

RULES = ("own", "pooled", "shrunk")
"""Names of the threshold rules."""

_STEPS = 10_000
"""Number of points of an integral over coverages from 0 to 1."""


@dataclass(frozen=True)
class Rule:
    """Results of one threshold rule by client (m,); coverage and size are nan for clients without test samples."""

    threshold: Floats
    """highest score in a set; infinite if the sets contain all classes, or all numbers"""
    coverage: Floats
    """the fraction of test samples whose set contains the label"""
    size: Floats
    """mean number of classes in a set, or width of the intervals, nan if these are infinite"""


@dataclass(frozen=True)
class ClientSets:
    """Results of the sets of m clients, from one predictions artifact."""

    level: float
    n_validation: NDArray[np.int64]
    """number of validation samples of each client, (m,)"""
    rules: Mapping[str, Rule]
    """results by the name of the threshold rule"""
    of_numbers: bool = False
    """whether they are intervals of numbers, whose size is their width"""


def require_level(coverage: float) -> None:
    """Raise UsageError unless ``coverage`` is between 0 and 1, both excluded."""
    if not 0 < coverage < 1:
        every = ": only the set of all classes always contains the true one" if coverage == 1 else ""
        raise UsageError(f"--coverage {coverage:g} is not between 0 and 1{every}", "--coverage 0.9")


def require_rule(name: str) -> None:
    """Raise UsageError for a rule that does not exist."""
    if name not in RULES:
        raise UsageError(f"unknown --threshold '{name}'", closest(name, RULES))


def fewest_samples(coverage: float) -> int:
    """Return the number of validation samples below which a client's own threshold is infinite: ⌈1 / α⌉ - 1."""
    return math.ceil(1 / (1 - _to_fraction(coverage))) - 1


def pseudo_count(coverage: float) -> int:
    """Return the total weight of all other clients' samples in a shrunk threshold, in samples: ⌈2 / α⌉.

    This is about twice ``fewest_samples``, so a client without validation samples has a finite threshold: about the
    (1 - α / 2) quantile of the other clients' scores.
    """
    return math.ceil(2 / (1 - _to_fraction(coverage)))


def least_coverage(coverage: float, n: int, tried: int) -> float:
    """Return a lower bound of the mean coverage if one of ``tried`` models was chosen on the n samples that calibrate.

    The coverage of a fixed model, given the samples, is distributed as Beta(k, n + 1 - k) or above, with
    k = ⌈(n + 1)(1 - α)⌉ (Vovk, 2012, https://arxiv.org/abs/1209.2673, Prop. 2a). By the union bound over the models, it
    holds for any rule of choice: the mean is at least the integral of max(0, 1 - tried F(x)), where F is the
    distribution function. With one model, it is k / (n + 1).
    """
    from scipy.special import betainc

    rank = math.ceil((n + 1) * _to_fraction(coverage))
    if rank > n:
        return 1.0
    middle = (np.arange(_STEPS) + 0.5) / _STEPS
    return float(np.maximum(0.0, 1.0 - tried * betainc(rank, n + 1 - rank, middle)).mean())


def score_labels(p: Array, y: Array) -> Floats:
    """Return 1 - p(label), (n,), from probabilities (n, C) and labels (n,)."""
    scores: Floats = score_classes(p)[np.arange(len(y)), y]
    return scores


def score_classes(p: Array) -> Floats:
    """Return 1 - p (n, C). Calibration and sets both use this function, so that equal scores stay equal."""
    return 1.0 - p.astype(np.float64)


def find_thresholds(scores: Floats, offsets: NDArray[np.int64], coverage: float, rule: str) -> Floats:
    """Return the threshold of each client (m,), infinite for a client with too few samples.

    ``scores`` (n,) are the scores of validation labels; those of client i start at ``offsets[i]``. Raises UsageError as
    ``require_level`` and ``require_rule``.
    """
    require_level(coverage)
    require_rule(rule)
    level, sizes = _to_fraction(coverage), np.diff(offsets)
    pooled = np.sort(scores)
    if rule == "pooled":
        return np.full(len(sizes), _quantile(pooled, level))
    own = [np.sort(scores[first:last]) for first, last in itertools.pairwise(offsets)]
    if rule == "own":
        return np.asarray([_quantile(each, level) for each in own], np.float64)
    count = pseudo_count(coverage)
    return np.asarray([_shrunk_threshold(each, pooled, level, count) for each in own], np.float64)


def build_sets(p: Array, threshold: Array | float, labels: Array | None = None) -> NDArray[np.bool_]:
    """Return a mask (n, C) of the classes in the set of each sample.

    A set contains the classes whose score is at most ``threshold``, (n,) or a number. It also contains the predicted
    class (``labels`` (n,), or else the most probable class), so it is never empty.
    """
    members = score_classes(p) <= np.broadcast_to(np.asarray(threshold, np.float64), (len(p),))[:, None]
    members[np.arange(len(p)), p.argmax(axis=1) if labels is None else labels] = True
    return members


def _to_fraction(coverage: float) -> Fraction:
    """Return the coverage as the decimal fraction that was typed: a float cannot represent 0.9 exactly."""
    return Fraction(repr(float(coverage)))


def _quantile(ordered: Floats, level: Fraction) -> float:
    """Return the ⌈(n + 1) (1 - α)⌉-th smallest of n ``ordered`` scores; infinity if that is more than n."""
    rank = math.ceil((len(ordered) + 1) * level)
    return float(ordered[rank - 1]) if rank <= len(ordered) else math.inf


def _shrunk_threshold(own: Floats, pooled: Floats, level: Fraction, count: int) -> float:
    """Return the smallest score t with #own(t) + w #others(t) ≥ (1 - α) (n + w N + 1); ``pooled`` contains ``own``.

    The client has n samples, the other clients N, with weight w = min(1, count / N). Integer arithmetic keeps rounding
    errors from changing a rank.
    """
    others = len(pooled) - len(own)
    weight = min(Fraction(1), Fraction(count, others)) if others else Fraction(0)
    one, part = weight.denominator, weight.numerator  # the weights of own and of other samples, times the denominator
    needed = math.ceil(level * (one * (len(own) + 1) + part * others))

    def is_enough(place: int) -> bool:
        below = int(np.searchsorted(own, pooled[place], side="right"))
        all_below = int(np.searchsorted(pooled, pooled[place], side="right"))
        return one * below + part * (all_below - below) >= needed

    first = bisect.bisect_left(range(len(pooled)), True, key=is_enough)
    return float(pooled[first]) if first < len(pooled) else math.inf
