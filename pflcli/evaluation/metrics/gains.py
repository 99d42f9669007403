"""Uncertainty of the gain over the baseline: interval and p-value, and the share of clients that chance helps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtri, stdtr, stdtridf, stdtrit

Array = NDArray[Any]

LEVEL = 0.95
"""Coverage of intervals, and the quantile that a share must exceed to be more than chance."""
DRAWS = 2000
"""Random draws of the share of clients that chance helps."""


POOL_FREEDOM = 2.0
"""Degrees of freedom that the variance between seeds of all methods lends to that of one: chosen by simulation."""
MIN_POOL = (4, 3)
"""Methods, with the baseline, and seeds from which on methods share their variance between seeds."""
_OUTLIER = 0.9
"""Quantile of F beyond which the variance of a method between seeds is not that of the others."""


@dataclass(frozen=True)
class SeedVariance:
    """The ``variance`` over seeds of the score of a method, which all methods of a comparison share but ``outliers``.

    ``benchmarks/intervals.py`` shows how often intervals with and without it cover the truth.
    """

    variance: float
    outliers: frozenset[str]

    def of_difference(self, one: str, other: str) -> float | None:
        """Return the variance over seeds of the difference between two methods, or None if one is an outlier."""
        return None if {one, other} & self.outliers else 2 * self.variance


def share_variance(means: Mapping[str, Sequence[float]]) -> SeedVariance | None:
    """Estimate the variance over seeds of the score of a method from the mean scores of all methods, one per seed.

    What a seed does to all methods alike is no part of it, so that gains serve as well as scores. A method is an
    outlier if its variance exceeds that of the others by more than an F test allows. Returns None for fewer methods or
    seeds than ``MIN_POOL``.
    """
    means = {label: values for label, values in means.items() if np.isfinite(values).all()}
    table = np.asarray([*means.values()], np.float64)
    if table.ndim < 2 or table.shape[0] < MIN_POOL[0] or table.shape[1] < MIN_POOL[1]:
        return None
    methods, seeds = table.shape
    squares = _interactions(table)
    of_all = float(squares.sum()) / (1 - 1 / methods)
    # The mean over methods, from which a method deviates, has a share of its own deviation.
    variances = np.maximum(0.0, (squares - of_all / methods**2) / (1 - 2 / methods))
    others = [float(_interactions(np.delete(table, row, axis=0)).sum()) / (methods - 2) for row in range(methods)]
    limit = float(fdtri(seeds - 1, (methods - 2) * (seeds - 1), _OUTLIER))
    is_outlier = variances > limit * np.asarray(others)
    shared = float(variances[~is_outlier].mean()) if not is_outlier.all() else 0.0
    return SeedVariance(shared, frozenset(label for label, out in zip(means, is_outlier, strict=True) if out))


def _interactions(table: Array) -> Array:
    """Return the variance over seeds of each method's deviations from the mean of all methods: (K, S) to (K,)."""
    deviations = table - table.mean(axis=0)
    return np.asarray(deviations.var(axis=1, ddof=1))


@dataclass(frozen=True)
class Estimate:
    """A mean gain, its standard error and degrees of freedom, the interval, and the p-value for a gain of 0."""

    mean: float
    error: float
    freedom: float
    interval: tuple[float, float]
    p: float
    many_seeds: tuple[float, float] | None = None
    """the error that infinitely many seeds would leave, with its degrees of freedom; None if one seed cannot tell"""

    @classmethod
    def by_student(cls, mean: float, error: float, freedom: float) -> Estimate:
        """Return the estimate whose interval and p-value are Student's t."""
        reach = error * float(stdtrit(freedom, (1 + LEVEL) / 2))
        p = 2 * float(stdtr(freedom, -abs(mean) / error)) if error > 0 else float(mean == 0)
        return cls(mean, error, freedom, (mean - reach, mean + reach), p)

    @classmethod
    def by_parts(cls, mean: float, parts: Sequence[tuple[float, float]]) -> Estimate:
        """Return the estimate whose squared half-width is the sum of those of its parts: variances with their freedom.

        Its degrees of freedom are those at which Student's t has this half-width.
        """
        quantile = (1 + LEVEL) / 2
        variances, freedoms = zip(*parts, strict=True)
        error = math.sqrt(sum(variances))
        reach = math.hypot(*(math.sqrt(v) * float(stdtrit(f, quantile)) for v, f in parts))
        freedom = float(stdtridf(quantile, reach / error)) if error > 0 else freedoms[0]
        return cls.by_student(mean, error, freedom)

    def interval_at(self, level: float) -> tuple[float, float]:
        """Return the interval with another coverage than ``LEVEL``."""
        reach = self.error * float(stdtrit(self.freedom, (1 + level) / 2))
        return self.mean - reach, self.mean + reach


def mean_gain(
    gains: Sequence[Array],
    weights: Sequence[Array],
    clients: Sequence[Array],
    shared_variance: float | None = None,
) -> Estimate | None:
    """Estimate the mean gain over seeds, weighted by clients' samples, with its uncertainty; None for a single client.

    For each seed, ``gains`` (m,) are the clients' differences in accuracy, ``weights`` (m,) their samples and
    ``clients`` (m,) their identifiers. An identifier that occurs under several seeds is the same client, which carries
    less information than different clients.

    The variance has two parts. The part of clients, C, is cluster-robust (Liang & Zeger, 1986): contributions of a
    client are summed over seeds before they are squared, with the HC2 leverage correction of MacKinnon & White (1985).
    Its degrees of freedom after Satterthwaite (1946) are those of its two parts, what seeds have in common and sampling
    errors, each with Kish's effective number of clients.

    The part of seeds, X, is the observed variance O of the mean over seeds beyond the variance E that sampling errors
    explain: X = max(0, O - (1 - 1 / max(f, 2)) E) at f degrees of freedom. Few seeds tell little about a variance:
    ``shared_variance``, the variance of a gain over seeds that all methods of the comparison have, is averaged into it
    as a prior of ``POOL_FREEDOM`` degrees of freedom (Smyth, 2004, section 4).

    The squared half-widths of Student's intervals of the two parts add up to that of the interval. It grows
    continuously with O, so that a part of seeds that is estimated as 0 shortens no interval. The share of E was chosen
    by ``benchmarks/intervals.py``. ``freedom`` is that of Student's t with the same interval. What the seeds have in
    common is left with infinitely many of them (``many_seeds``).
    """
    seeds = len(gains)
    ids, place = np.unique(np.concatenate(clients), return_inverse=True)
    ends = np.cumsum([len(values) for values in clients])
    places = np.split(place, ends[:-1])
    table, share = np.zeros((seeds, len(ids))), np.zeros(len(ids))
    means = np.empty(seeds)
    for seed, (gain, weight, at) in enumerate(zip(gains, weights, places, strict=True)):
        part = weight / weight.sum()
        means[seed] = part @ gain
        rest = 1 - part
        table[seed, at] = part * (gain - means[seed]) / np.sqrt(np.where(rest > 0, rest, 1.0))
        share[at] += part / seeds
    return estimate_mean(means, table @ table.T, 1 / float(share @ share), shared_variance)


def estimate_mean(
    means: Array, products: Array, effective: float, shared_variance: float | None = None
) -> Estimate | None:
    """Estimate the mean of the ``means`` (S,) of seeds, as ``mean_gain`` documents; None for a single client.

    ``products`` (S, S) are sums over clients of the products of their contributions under two seeds, and ``effective``
    is Kish's number of clients.
    """
    if effective <= 1 + 1e-9:
        return None
    seeds = len(means)
    of_clients = max(0.0, float(products.sum())) / seeds**2  # rounding may leave less than 0
    mean = float(means.mean())
    if seeds == 1:
        return Estimate.by_student(mean, math.sqrt(of_clients), max(1.0, effective - 1))
    traced = float(np.trace(products))
    own, common = traced / seeds, (float(products.sum()) - traced) / (seeds * (seeds - 1))
    shared_by_seeds = min(max(0.0, common), of_clients)
    doubt = (shared_by_seeds**2 + (of_clients - shared_by_seeds) ** 2) / (effective - 1)
    freedom_of_clients = max(1.0, of_clients**2 / doubt) if doubt > 0 else max(1.0, effective - 1)
    between, freedom_of_seeds = float(means.var(ddof=1)), seeds - 1.0
    if shared_variance is not None:
        between = freedom_of_seeds * between + POOL_FREEDOM * shared_variance
        freedom_of_seeds += POOL_FREEDOM
        between /= freedom_of_seeds
    of_seeds = max(0.0, (between - (1 - 1 / max(freedom_of_seeds, 2)) * (own - common)) / seeds)
    estimate = Estimate.by_parts(mean, ((of_clients, freedom_of_clients), (of_seeds, freedom_of_seeds)))
    return replace(estimate, many_seeds=(math.sqrt(shared_by_seeds), max(1.0, effective - 1)))


def mean_difference(differences: Sequence[float]) -> Estimate | None:
    """Estimate the mean of one difference per seed, with its uncertainty over seeds alone; None for a single seed."""
    if len(differences) < 2:
        return None
    values = np.asarray(differences, np.float64)
    return Estimate.by_student(
        float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values)), len(values) - 1
    )


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """Return p-values corrected for multiple comparisons: Holm (1979), https://www.jstor.org/stable/4615733."""
    corrected, least = {}, 0.0
    for rank, name in enumerate(sorted(p, key=lambda name: p[name])):
        least = max(least, min(1.0, (len(p) - rank) * p[name]))
        corrected[name] = least
    return corrected


def estimate_chance(differing: Sequence[Array], rng: np.random.Generator, *, repeated: bool) -> tuple[float, float]:
    """Return the expected share of clients that chance alone makes better off (or worse off), and its 95 % quantile.

    ``differing`` has for each seed the number of samples per client, (m,), on which exactly one of two methods is
    right. If both methods were equally good, either could be the right one: this is a permutation test that swaps the
    two methods' predictions. A client with d such samples is better off with probability (1 - C(d, d/2) / 2^d) / 2.
    Clients with the same d share one binomial draw, so that 10,000 clients cost no more than 10. If all seeds have the
    same samples (``repeated``), seeds are not independent; their quantiles are averaged, which is conservative.
    """
    expected, shares = [], []
    for counts in differing:
        values, clients = np.unique(counts, return_counts=True)
        probability = np.asarray([_probability_better(int(value)) for value in values])
        expected.append(float(probability @ clients) / len(counts))
        drawn = rng.binomial(clients, probability, size=(DRAWS, len(values))).sum(axis=1) / len(counts)
        shares.append(np.sort(drawn) if repeated else drawn)
    high = np.quantile(np.mean(shares, axis=0), LEVEL, method="higher")
    return float(np.mean(expected)), float(high)


def _probability_better(differing: int) -> float:
    """Return the probability that ``differing`` fair coins show more heads than tails."""
    if differing % 2:
        return 0.5
    tie = math.lgamma(differing + 1) - 2 * math.lgamma(differing / 2 + 1) - differing * math.log(2)
    return (1 - math.exp(tie)) / 2
