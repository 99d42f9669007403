"""How sure a gain over the baseline is: its interval over clients and seeds, and how many clients chance would help."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

Array = NDArray[Any]

LEVEL = 0.95
"""Coverage of intervals, and the quantile that a share has to exceed to be more than chance."""
DRAWS = 2000
"""Draws of the share of clients that chance alone would help."""


@dataclass(frozen=True)
class Estimate:
    """A mean gain, its standard error, the degrees of freedom of that error, the interval, and the p-value of 0."""

    mean: float
    error: float
    freedom: float
    interval: tuple[float, float]
    p: float


def mean_gain(gains: Sequence[Array], weights: Sequence[Array], clients: Sequence[Array]) -> Estimate | None:
    """Return the mean over seeds of the gain weighted by clients' samples, and how sure it is; None with one client.

    For each seed ``gains`` (m,) holds the clients' differences in accuracy, ``weights`` (m,) their samples and
    ``clients`` (m,) who they are: an id that comes again under another seed is the same client, so it tells less than
    another client would.

    The variance has two parts. That of clients is robust to clusters (Liang & Zeger, 1986): what a client contributes
    is added up over seeds before it is squared, with the HC2 correction of MacKinnon & White (1985) for its leverage.
    That of seeds is what their means vary beyond it, by moments, and at least 0. Student's t, with degrees of freedom
    after Satterthwaite (1946) and Kish's effective number of clients, gives the interval, so that few clients or seeds
    widen it.
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
    effective = 1 / float(share @ share)
    if effective <= 1 + 1e-9:
        return None
    products = table @ table.T
    of_clients = float(products.sum()) / seeds**2
    of_seeds = doubt_of_seeds = 0.0
    if seeds > 1:
        own, common = float(np.trace(products)) / seeds, float(products.sum() - np.trace(products))
        observed, expected = float(means.var(ddof=1)) / seeds, (own - common / (seeds * (seeds - 1))) / seeds
        if observed > expected:
            of_seeds, doubt_of_seeds = observed - expected, observed**2 / (seeds - 1)
    variance = of_clients + of_seeds
    doubt = of_clients**2 / (effective - 1) + doubt_of_seeds
    freedom = max(1.0, variance**2 / doubt) if doubt > 0 else effective - 1
    mean, error = float(means.mean()), math.sqrt(variance)
    reach = float(stdtrit(freedom, (1 + LEVEL) / 2)) * error
    p = 2 * float(stdtr(freedom, -abs(mean) / error)) if error > 0 else float(mean == 0)
    return Estimate(mean, error, freedom, (mean - reach, mean + reach), p)


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """Return p-values corrected for their number: Holm (1979), https://www.jstor.org/stable/4615733."""
    corrected, least = {}, 0.0
    for rank, name in enumerate(sorted(p, key=lambda name: p[name])):
        least = max(least, min(1.0, (len(p) - rank) * p[name]))
        corrected[name] = least
    return corrected


def chance(differing: Sequence[Array], rng: np.random.Generator, *, repeated: bool) -> tuple[float, float]:
    """Return the share of clients that chance alone makes better off (as many worse off), and its 95 % quantile.

    ``differing`` holds for each seed, by client (m,), on how many samples one of two methods is right and the other
    wrong. If both were equally good, either could be the right one: a permutation test that swaps the two methods'
    answers within each client. A client with d such samples is better off with probability (1 - C(d, d/2) / 2^d) / 2.
    Clients with the same d are one binomial draw, so that 10,000 clients cost no more than 10. With ``repeated``
    samples, the same under every seed, seeds tell nothing new: their quantiles are averaged, which is on the safe side.
    """
    expected, shares = [], []
    for counts in differing:
        values, clients = np.unique(counts, return_counts=True)
        probability = np.asarray([_better(int(value)) for value in values])
        expected.append(float(probability @ clients) / len(counts))
        drawn = rng.binomial(clients, probability, size=(DRAWS, len(values))).sum(axis=1) / len(counts)
        shares.append(np.sort(drawn) if repeated else drawn)
    high = np.quantile(np.mean(shares, axis=0), LEVEL, method="higher")
    return float(np.mean(expected)), float(high)


def _better(differing: int) -> float:
    """Return the probability that fair coins show more heads than tails."""
    if differing % 2:
        return 0.5
    tie = math.lgamma(differing + 1) - 2 * math.lgamma(differing / 2 + 1) - differing * math.log(2)
    return (1 - math.exp(tie)) / 2
