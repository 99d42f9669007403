"""Tables and verdicts from stored scores, by the formulas of docs/measurement.md: NumPy, and nothing of the package."""

from __future__ import annotations

import csv
import gzip
import math
from collections import defaultdict

import numpy as np


def read(path):
    """Return the rows of a CSV file, or of a compressed one, each a cell by column."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def find(folder, name):
    """Return the rows of a file of scores, plain or compressed; none if it is not there."""
    paths = [folder / f"{name}{ending}" for ending in ("", ".gz") if (folder / f"{name}{ending}").exists()]
    assert len(paths) < 2, f"{name} is there twice"
    return read(paths[0]) if paths else []


# Student's t and F: integrals of powers of sines and cosines, by Gauss and Legendre.

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(400)


def _integrate(f, end):
    return float(end / 2 * (_WEIGHTS @ f(end / 2 * (_NODES + 1))))


def _solve(f, low, high):
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) < 0 else (low, middle)
    return (low + high) / 2


def t_quantile(level, freedom):
    """Return the half-width of the interval of Student's t that covers ``level``, in standard errors."""
    freedom = min(freedom, 1e6)

    def coverage(angle):
        return _integrate(lambda u: np.cos(u) ** (freedom - 1), angle)

    top = math.atan(200 / math.sqrt(freedom)) if freedom > 50 else math.pi / 2
    log_beta = math.lgamma(0.5) + math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2)
    whole = math.exp(log_beta) / 2
    return math.sqrt(freedom) * math.tan(_solve(lambda angle: coverage(angle) / whole - level, 0.0, top))


def f_quantile(level, one, other):
    """Return the quantile of F with ``one`` and ``other`` degrees of freedom."""

    def share(angle):
        return _integrate(lambda u: np.sin(u) ** (one - 1) * np.cos(u) ** (other - 1), angle)

    whole = share(math.pi / 2)
    return other / one * math.tan(_solve(lambda angle: share(angle) / whole - level, 0.0, math.pi / 2)) ** 2


# Scores of clients and runs.


class Scores:
    """The stored scores of one comparison, or of an evaluation: of a method, seeds to arrays by client."""

    def __init__(self, runs, clients, split="test"):
        self.runs = {(row["method"], int(row["seed"])): row for row in runs}
        rows = defaultdict(list)
        for row in clients:
            rows[row["method"], int(row["seed"])].append(row)
        self.clients = dict(rows)
        self.split = split

    @property
    def methods(self):
        """The labels of all methods."""
        return list(dict.fromkeys(method for method, _ in self.runs))

    def seeds(self, method):
        """The seeds of a method."""
        return sorted(seed for name, seed in self.runs if name == method)

    def values(self, method, seed, metric):
        """Return a metric of each client; nan where it is unknown."""
        return np.array([float(row[metric] or "nan") for row in self.clients[method, seed]])

    def samples(self, method, seed):
        """Return the number of scored samples of each client."""
        return np.array([int(row[f"n_{self.split}"]) for row in self.clients[method, seed]], float)

    def names(self, method, seed):
        """Return who each client is: its name, or its number in its partition."""
        partition = self.runs[method, seed]["partition"]
        return [row.get("name") or f"{partition}/{row['client']}" for row in self.clients[method, seed]]

    def by_run(self, method, metric):
        """Return a metric of each run, of those that have it."""
        values = [self.runs[method, seed].get(metric, "") for seed in self.seeds(method)]
        return [float(value) for value in values if value]

    def is_ranked(self, method):
        """Whether a method is no reference."""
        return not any(int(self.runs[method, seed]["reference"]) for seed in self.seeds(method))

    def varies(self, method):
        """Whether a method is among those that share their variance between seeds."""
        return self.is_ranked(method) and not any(
            int(self.runs[method, seed]["repeats_baseline"]) for seed in self.seeds(method)
        )


def weighted_mean(values, weights):
    """Return the mean of the known values."""
    known = ~np.isnan(values) & (weights > 0)
    return float(values[known] @ weights[known] / weights[known].sum()) if known.any() else math.nan


OVER_CLIENTS = {
    "accuracy": weighted_mean,
    "accuracy_mean": lambda values, n: float(values[n > 0].mean()),
    "bottom_decile": lambda values, n: float(np.sort(values[n > 0])[math.ceil((n > 0).sum() / 10) - 1]),
    "worst": lambda values, n: float(values[n > 0].min()),
    "accuracy_std": lambda values, n: float(values[n > 0].std()),
}
"""Metrics of a run that follow from the accuracies of its clients."""
OVER_ERRORS = {"rmse": weighted_mean, "rmse_worst": lambda values, n: float(values[n > 0].max())}
"""Metrics of a run that follow from the errors of its clients."""


def score_runs(scores, method, metric):
    """Return a metric of each run of a method: from its clients if it follows from them, else as it is stored."""
    for name, over in (("accuracy", OVER_CLIENTS), ("rmse", OVER_ERRORS)):
        if metric in over:
            return [
                over[metric](scores.values(method, seed, name), scores.samples(method, seed))
                for seed in scores.seeds(method)
            ]
    if metric in ("better_off", "worse_off"):
        sign = 1 if metric == "better_off" else -1
        gains = [scores.values(method, seed, "gain") for seed in scores.seeds(method)]
        return [float((sign * gain[~np.isnan(gain)] > 0).mean()) for gain in gains]
    if metric == "gain":
        seeds = scores.seeds(method)
        return [weighted_mean(scores.values(method, s, "gain"), scores.samples(method, s)) for s in seeds]
    return scores.by_run(method, metric)


# Intervals.


def estimate(gains, weights, names, shared=None):
    """Return the mean, standard error and degrees of freedom of a gain; None for a single client.

    There is an array per seed of each: the gains of clients, their samples, and who they are. ``shared`` is the
    variance between seeds that methods share.
    """
    seeds, people = len(gains), sorted({name for each in names for name in each})
    place = {name: number for number, name in enumerate(people)}
    means = np.array([g @ w / w.sum() for g, w in zip(gains, weights, strict=True)])
    errors, shares = np.zeros((seeds, len(people))), np.zeros(len(people))
    for s in range(seeds):
        for gain, weight, name in zip(gains[s], weights[s] / weights[s].sum(), names[s], strict=True):
            errors[s, place[name]] += weight * (gain - means[s]) / math.sqrt(1 - weight if weight < 1 else 1)
            shares[place[name]] += weight / seeds
    many = 1 / (shares**2).sum()
    if many <= 1 + 1e-9:
        return None
    of_clients = (errors.sum(axis=0) ** 2).sum() / seeds**2
    if seeds == 1:
        return means[0], math.sqrt(of_clients), max(1, many - 1)
    products = errors @ errors.T
    own = np.trace(products) / seeds
    common = (products.sum() - np.trace(products)) / (seeds * (seeds - 1))
    kept = min(max(0, common), of_clients)
    doubt = kept**2 + (of_clients - kept) ** 2
    freedom_of_clients = max(1, of_clients**2 * (many - 1) / doubt) if doubt else max(1, many - 1)
    observed, freedom = means.var(ddof=1), seeds - 1
    if shared is not None:
        observed, freedom = (freedom * observed + 2 * shared) / (freedom + 2), freedom + 2
    of_seeds = max(0, observed - (1 - 1 / max(freedom, 2)) * (own - common)) / seeds
    reach = math.sqrt(
        of_clients * t_quantile(0.95, freedom_of_clients) ** 2 + of_seeds * t_quantile(0.95, freedom) ** 2
    )
    error = math.sqrt(of_clients + of_seeds)
    if not error:
        return means.mean(), 0.0, freedom_of_clients
    # Longer intervals have fewer degrees of freedom.
    as_one = math.exp(_solve(lambda x: reach / error - t_quantile(0.95, math.exp(x)), 0.0, math.log(1e6)))
    return means.mean(), error, as_one


def share_variance(means):
    """Return the variance between seeds of a gain that methods share, and the methods that have their own.

    ``means`` has a mean per seed of each method. None with fewer than four methods or three seeds.
    """
    table = np.array([*means.values()])
    if table.ndim < 2 or table.shape[0] < 4 or table.shape[1] < 3:
        return None
    methods, seeds = table.shape

    def interact(rows):
        return (rows - rows.mean(axis=0)).var(axis=1, ddof=1)

    squares = interact(table)
    together = squares.sum() / (1 - 1 / methods)
    own = np.maximum(0, (squares - together / methods**2) / (1 - 2 / methods))
    others = np.array([interact(np.delete(table, k, axis=0)).sum() / (methods - 2) for k in range(methods)])
    apart = own > f_quantile(0.9, seeds - 1, (methods - 2) * (seeds - 1)) * others
    return 2 * float(own[~apart].mean()) if not apart.all() else 0.0, {
        name for name, out in zip(means, apart, strict=True) if out
    }


def share_among(scores, value, baseline=None):
    """Return what ``share_variance`` does of the ``value`` of each run, of methods with all seeds."""
    seeds = sorted({seed for _, seed in scores.runs})
    means = {name: [value(name, s) for s in seeds] for name in scores.methods if scores.varies(name)
             and scores.seeds(name) == seeds}  # fmt: skip
    means = {name: values for name, values in means.items() if not np.isnan(values).any()}
    if baseline is not None:
        means[baseline] = [0.0] * len(seeds)
    return {*means}, share_variance(means)


def gain_interval(scores, method, baseline, level, shared, most=1.0):
    """Return the interval of a gain over the baseline, of which none is above ``most``; None if it has none."""
    members, pooled = shared
    gains, weights, names = [], [], []
    for seed in scores.seeds(method):
        gain = scores.values(method, seed, "gain")
        known = ~np.isnan(gain)
        gains.append(gain[known])
        weights.append(scores.samples(method, seed)[known])
        names.append(np.array(scores.names(method, seed))[known].tolist())
    applies = pooled is not None and method in members and not {method, baseline} & pooled[1]
    if not any(gain.any() for gain in gains):
        return 0.0, 0.0
    found = estimate(gains, weights, names, pooled[0] if applies else None)
    if found is None:
        return None
    reach = found[1] * t_quantile(level, found[2])
    return max(-most, found[0] - reach), min(most, found[0] + reach)


def difference_interval(scores, metric, method, other, level, value=None, ties=False):
    """Return the difference of two methods, or of one from a ``value``, and its interval at a level.

    With ``ties``, it is the same with every seed, and has the error of one test sample.
    """
    names = [name for name in (method, other) if name is not None]
    seeds = sorted(set.intersection(*({*scores.seeds(name)} for name in names)))
    base, _, part = metric.rpartition("_")
    base, part = (base, part) if part in ("seen", "unseen") else (metric, "all")
    by_client = base in scores.clients[method, seeds[0]][0]
    if other is not None and by_client and not ties:
        return _difference_by_client(scores, base, part, method, other, seeds, level)
    sides = [[dict(zip(scores.seeds(name), score_runs(scores, name, metric), strict=True))[seed] for seed in seeds]
             for name in names]  # fmt: skip
    differences = np.array(sides[0]) - (np.array(sides[1]) if other is not None else value)
    spread = differences.std(ddof=1)
    if ties:
        assert spread < 1e-5  # scores are stored with six digits
        samples = [scores.samples(name, seed) for name in names for seed in seeds]
        samples = [n[n > 0] for n in samples]
        spread = 1 / (np.mean([n.sum() for n in samples]) if by_client else np.median(np.concatenate(samples)))
    reach = spread / math.sqrt(len(seeds)) * t_quantile(level, max(1, len(seeds) - 1))
    return float(differences.mean()), (differences.mean() - reach, differences.mean() + reach)


def _difference_by_client(scores, metric, part, method, other, seeds, level):
    def choose(name, seed):
        values = scores.values(name, seed, metric)
        known = ~np.isnan(values)
        if part != "all":
            new = np.array([row["unseen"] == "1" for row in scores.clients[name, seed]])
            known &= new == (part == "unseen")
        return values, known

    def mean(name, seed):
        values, known = choose(name, seed)
        return weighted_mean(values[known], scores.samples(name, seed)[known])

    members, pooled = share_among(scores, mean)
    applies = pooled is not None and {method, other} <= members and not {method, other} & pooled[1]
    gains, weights, names = [], [], []
    for seed in seeds:
        one, known = choose(method, seed)
        two, also = choose(other, seed)
        known &= also
        gains.append((one - two)[known])
        weights.append(scores.samples(method, seed)[known])
        names.append(np.array(scores.names(method, seed))[known].tolist())
    found = estimate(gains, weights, names, pooled[0] if applies else None)
    reach = found[1] * t_quantile(level, found[2])
    return found[0], (found[0] - reach, found[0] + reach)


def decide(interval, direction, margin):
    """Return whether all differences in an interval satisfy the condition of a claim; None if only some do."""
    low, high = interval
    if direction in ("lower", "not-higher"):
        low, high = -high, -low
    if direction == "level":
        return True if -margin <= low and high <= margin else False if low > margin or high < -margin else None
    if direction in ("higher", "lower"):
        return True if low > margin else False if high <= margin else None
    return True if low >= -margin else False if high < -margin else None


def judge(pairs):
    """Return the verdict on a claim from whether its condition holds, for each setting a list over its pairs."""
    words = {
        "not confirmed" if False in held else "undecided" if None in held else "confirmed" for held in pairs.values()
    }
    if len(words) == 1:
        return words.pop()
    return "in part" if {"confirmed", "not confirmed"} <= words else "undecided"
