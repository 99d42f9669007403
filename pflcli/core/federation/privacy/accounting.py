"""Compute epsilon from noise, noise from epsilon, and the epsilon of several private predictions together.

A round releases the sum of clipped updates of a Poisson sample of clients, with Gaussian noise: an amplified Gaussian
mechanism. Its epsilon follows from the privacy loss distributions of ``dp-accounting``. Rounds compose (Koskela et al.,
2020, https://arxiv.org/abs/1906.03049; Doroshenko et al., 2022, https://arxiv.org/abs/2207.04380). Two sets of clients
are adjacent if they differ by one additional client.
"""

from __future__ import annotations

import functools
import importlib
import math
from importlib.metadata import version
from typing import Any

import numpy as np

from pflcli.core.errors import UsageError

NAME = "dp-accounting PLD"
_FINE_WIDTH, _COARSE_WIDTH = 1e-4, 1e-2
"""Privacy losses are rounded up to multiples of these: the package's default, and a coarse width for large losses."""
_MAX_FINE_EPSILON = 50.0
"""Epsilon by Rényi divergences above which losses are rounded to the coarse width; epsilon is still an upper bound."""
_DIGITS = 3
"""Decimals of a calibrated noise multiplier, which is rounded up."""
_LOG_TOLERANCE, _MAX_STEPS, _BRACKET_TOLERANCE = 2e-4, 12, 0.01
"""Tolerance of the logarithm of epsilon, maximum number of steps, and relative tolerance of the first bracket."""
_ORDERS = (*range(2, 33), 48, 64, 128, 256, 512)
"""Rényi orders; the package computes divergences of integer orders without integrals."""
_MAX_NOISE = 1e5
"""Maximum noise multiplier."""
_BISECTIONS = 60
"""Steps that find the epsilon of composed predictions to the precision of a float."""


def accountant_version() -> str:
    """Return the version of dp-accounting; raises UsageError if it is not installed."""
    _import_accounting()
    return version("dp-accounting")


@functools.lru_cache
def compute_epsilon(noise: float, rate: float, rounds: int, delta: float) -> float:
    """Return the epsilon at ``delta`` of ``rounds`` with this noise multiplier and sampling rate."""
    if rounds == 0:
        return 0.0
    if noise == 0:
        return math.inf
    width = _FINE_WIDTH if _bound_epsilon_by_renyi(noise, rate, rounds, delta) <= _MAX_FINE_EPSILON else _COARSE_WIDTH
    return _compose_rounds(_import_accounting().pld.PLDAccountant(_adjacency(), width), noise, rate, rounds, delta)


@functools.lru_cache
def find_noise(target: float, rate: float, rounds: int, delta: float) -> float:
    """Return the smallest noise multiplier with three decimals whose epsilon is at most ``target``.

    Raises UsageError if there is none.
    """
    if rounds == 0:
        raise UsageError("without rounds no noise is needed", "--rounds 1 or more")
    plan = (rate, rounds, delta)
    points = [_find_noise_by_renyi(target, *plan)]
    losses = [math.log(compute_epsilon(points[0], *plan) / target)]
    slope = -1.0  # of log epsilon by log noise, for one Gaussian with little noise
    while abs(losses[-1]) > _LOG_TOLERANCE and len(points) < _MAX_STEPS:
        points.append(points[-1] * math.exp(max(-1.0, min(-losses[-1] / slope, 1.0))))
        losses.append(math.log(compute_epsilon(points[-1], *plan) / target))
        slope = (losses[-1] - losses[-2]) / math.log(points[-1] / points[-2])
    best = min(range(len(points)), key=lambda i: abs(losses[i]))
    digits = 10**_DIGITS
    number = math.ceil(points[best] * digits)
    while compute_epsilon(number / digits, *plan) > target:
        number += 1
    return float(number / digits)


def _find_noise_by_renyi(target: float, rate: float, rounds: int, delta: float) -> float:
    """Return the noise multiplier whose bound by Rényi divergences is ``target``, with a tolerance of 1 %."""
    low, high = 0.0, 1.0
    while _bound_epsilon_by_renyi(high, rate, rounds, delta) > target:
        low, high = high, high * 2
        if high > _MAX_NOISE:
            raise UsageError(f"no noise gives epsilon {target:g} at delta {delta:g}", "a larger --dp-epsilon")
    while high - low > _BRACKET_TOLERANCE * high:
        middle = (low + high) / 2
        if _bound_epsilon_by_renyi(middle, rate, rounds, delta) > target:
            low = middle
        else:
            high = middle
    return high


def _bound_epsilon_by_renyi(noise: float, rate: float, rounds: int, delta: float) -> float:
    """Return an upper bound of epsilon by Rényi divergences, which is fast to compute."""
    return _compose_rounds(_import_accounting().rdp.RdpAccountant(_ORDERS, _adjacency()), noise, rate, rounds, delta)


def _compose_rounds(accountant: Any, noise: float, rate: float, rounds: int, delta: float) -> float:
    """Return the epsilon of all rounds together by ``accountant``."""
    events = _import_accounting()
    event = events.GaussianDpEvent(noise)
    accountant.compose(event if rate == 1 else events.PoissonSampledDpEvent(rate, event), rounds)
    return float(accountant.get_epsilon(delta))


def _adjacency() -> Any:
    return _import_accounting().NeighboringRelation.ADD_OR_REMOVE_ONE


def _import_accounting() -> Any:
    """Return dp-accounting; raises UsageError if it is not installed."""
    try:
        for name in ("pld", "rdp"):
            importlib.import_module(f"dp_accounting.{name}")
        return importlib.import_module("dp_accounting")
    except ImportError:
        raise UsageError(
            "differential privacy needs dp-accounting, which is not installed", "pip install 'pflcli[privacy]'"
        ) from None


def compose_epsilon(each: float, count: int, delta: float) -> float:
    """Return the epsilon at ``delta`` of ``count`` predictions together, each with epsilon ``each``.

    It is at most the sum of their epsilons, and less if the bound may fail with a small probability delta: Kairouz et
    al. (2015), https://arxiv.org/abs/1311.0776, Theorem 3.3, which holds for every mechanism, and is tight for the
    worst one.
    """
    low, high = 0.0, each * count
    if not count or _compose_delta(low, each, count) <= delta:
        return 0.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if _compose_delta(middle, each, count) > delta else (low, middle)
    return high


def _compose_delta(epsilon: float, each: float, count: int) -> float:
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
