"""The privacy cost of several epsilon-differentially private predictions together.

It is at most the sum of their epsilons, and less if the bound may fail with a small probability delta: Kairouz et al.
(2015), https://arxiv.org/abs/1311.0776, Theorem 3.3, which holds for every mechanism, and is tight for the worst one.
"""

from __future__ import annotations

import numpy as np

_DIGITS = 60


def compose_epsilon(each: float, count: int, delta: float) -> float:
    """Return the epsilon at ``delta`` of ``count`` predictions with epsilon ``each`` together."""
    low, high = 0.0, each * count
    if not count or _delta(low, each, count) <= delta:
        return 0.0
    for _ in range(_DIGITS):
        middle = (low + high) / 2
        low, high = (middle, high) if _delta(middle, each, count) > delta else (low, middle)
    return high


def _delta(epsilon: float, each: float, count: int) -> float:
    """Return the delta of ``count`` predictions at ``epsilon``.

    The worst mechanism releases one bit, which is correct with odds of e^each. Of n such bits, l are wrong with
    probability C(n, l) e^((n - l) each) / (1 + e^each)^n in one case, and C(n, l) e^(l each) / (1 + e^each)^n in the
    other.
    """
    from scipy.special import gammaln

    wrong = np.arange(count + 1)
    ways = gammaln(count + 1) - gammaln(wrong + 1) - gammaln(count - wrong + 1) - count * np.logaddexp(0, each)
    gain = (count - wrong) * each
    above = gain > epsilon + wrong * each
    logs, less = (ways + gain)[above], (epsilon + wrong * each - gain)[above]
    return float((np.exp(logs) * -np.expm1(less)).sum())
