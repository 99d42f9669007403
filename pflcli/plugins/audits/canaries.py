"""A lower bound on epsilon from canaries: random directions, some of them inserted into training.

Andrew et al. (2023), https://arxiv.org/abs/2302.03098: each canary client uploads an update along a random direction,
and the attacker projects the released models on it. Projections on inserted and on other directions are both nearly
normal. If they are N(mu_1, s^2) and N(mu_0, s^2), distinguishing them is exactly as hard as distinguishing N(mu, 1)
from N(0, 1) with mu = (mu_1 - mu_0) / s. An (epsilon, delta) guarantee with an epsilon below that of this Gaussian
mechanism is then impossible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
"""One-sided confidence level of the lower bound."""
_Z = 1.6448536269514722
"""The normal quantile of ``CONFIDENCE``."""
MIN_CANARIES = 20
"""Least number of canaries of each kind; with fewer the normal approximation is too coarse."""


@dataclass(frozen=True)
class Estimate:
    """The separation ``mu`` of canaries in standard deviations, and the resulting epsilon; each with a lower bound."""

    mu: float
    mu_low: float
    epsilon: float
    epsilon_low: float


def estimate(inserted: NDArray[np.float64], left_out: NDArray[np.float64], delta: float) -> Estimate:
    """Estimate epsilon at ``delta`` from projections on inserted directions (k,) and on others (l,).

    ``s`` is the larger of both standard deviations, which keeps the bound conservative if they differ. The error of mu
    is that of a standardized mean difference (Hedges 1981, https://doi.org/10.3102/10769986006002107). Raises
    ValueError for fewer than ``MIN_CANARIES`` of either kind.
    """
    counts = len(inserted), len(left_out)
    if min(counts) < MIN_CANARIES:
        raise ValueError(f"got {min(counts)} canaries; need at least {MIN_CANARIES}")
    spread = max(float(inserted.std(ddof=1)), float(left_out.std(ddof=1)))
    mu = (float(inserted.mean()) - float(left_out.mean())) / max(spread, np.finfo(np.float64).tiny)
    error = math.sqrt(1 / counts[0] + 1 / counts[1] + mu**2 / (2 * (sum(counts) - 2)))
    low = max(mu - _Z * error, 0.0)
    return Estimate(mu, low, gaussian_epsilon(max(mu, 0.0), delta), gaussian_epsilon(low, delta))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon at ``delta`` for which N(mu, 1) and N(0, 1) are indistinguishable.

    Balle & Wang (2018), https://arxiv.org/abs/1805.06530, Theorem 8: delta(epsilon) = Phi(mu / 2 - epsilon / mu) -
    e^epsilon Phi(-mu / 2 - epsilon / mu), which falls with epsilon.
    """
    if mu <= 0:
        return 0.0
    low, high = 0.0, 1.0
    if _delta(mu, low) <= delta:
        return 0.0
    while _delta(mu, high) > delta:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _delta(mu, middle) > delta else (low, middle)
    return high


def _delta(mu: float, epsilon: float) -> float:
    from scipy.special import log_ndtr, ndtr

    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))))
