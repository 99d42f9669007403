"""How often the interval of a gain covers the truth, and how long it is, with and without variances that methods share.

    python benchmarks/intervals.py [--draws 2000] [--quick | --looks | --fixed]

Scores of clients are simulated: a method differs from the baseline by a mean, by an effect of each client, by an effect
of each seed, and by the sampling error of a client's test samples. Seeds share their clients or have their own, and
differ much or, in the last cases, hardly at all. Prints,
for each case, the coverage of the mean over methods and of the method whose seeds vary most, the family-wise error of
Holm's test, and the length relative to intervals of methods that share nothing.

With --looks, seeds are added one by one, as by ``pfl compare --until-decided``, and all methods are equal. Prints how
often one is called better or worse at one of the looks, at 95 % each and at the levels of alpha spending, and how often
a best method is decided.

With --fixed, a handful of clients are the same under each seed, and the gain of these clients is the truth. Their test
samples are drawn again for each seed from five times as many, or are the same; half of the samples are always right or
wrong, whatever the seed. Prints coverage and half-length of the interval for these clients, those of Student's interval
of the mean gains of seeds, and the half-length for clients like these.
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import dataclass

import numpy as np

from pflcli.evaluation.metrics import fixed_clients, gains
from pflcli.evaluation.metrics.looks import Looks


@dataclass(frozen=True)
class Case:
    """A simulated comparison of ``methods`` with a baseline."""

    methods: int
    seeds: int
    clients: int
    samples: int = 100
    of_seeds: float = 0.02
    of_clients: float = 0.03
    spread: float = 0.0
    """standard deviation of the logarithm of the methods' variances between seeds"""
    outlier: int | None = None
    """the method, 0 is the baseline, whose variance between seeds is ten times that of the others"""
    correlation: float = 0.0
    """of the effects of seeds on half of the methods, such as those that share a backbone"""
    same_clients: bool = True

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Return scores (methods + 1, seeds, clients), of which all have the same mean."""
        count = self.methods + 1
        variances = self.of_seeds**2 * np.exp(rng.normal(0, self.spread, count))
        if self.outlier is not None:
            variances[self.outlier] *= 10
        seeds = rng.normal(size=(count, self.seeds))
        half = np.arange(count) % 2 == 1
        seeds[half] = np.sqrt(1 - self.correlation) * seeds[half] + np.sqrt(self.correlation) * rng.normal(
            size=self.seeds
        )
        own = 1 if self.same_clients else self.seeds
        clients = self.of_clients * rng.normal(size=(count, own, self.clients))
        noise = rng.normal(size=(count, self.seeds, self.clients)) * np.sqrt(0.15 / self.samples)
        return np.sqrt(variances)[:, None, None] * seeds[:, :, None] + clients + noise


def measure(case: Case, draws: int) -> dict[str, tuple[float, float, float, float]]:
    """Return coverage over methods, coverage of the outlier or of method 1, family-wise error and median length."""
    rng = np.random.default_rng(0)
    watched = case.outlier or 1
    numbers = np.arange(case.seeds * case.clients).reshape(case.seeds, case.clients)
    identities = [*(numbers % case.clients if case.same_clients else numbers)]
    weights = [np.ones(case.clients)] * case.seeds
    measured: dict[str, list[tuple[list[bool], bool, float]]] = {"alone": [], "shared": []}
    for _ in range(draws):
        scores = case.draw(rng)
        shared = gains.share_variance({str(row): [*scores[row].mean(axis=1)] for row in range(len(scores))})
        for name, outcomes in measured.items():
            estimates = []
            for row in range(1, len(scores)):
                prior = shared.of_difference(str(row), "0") if shared is not None and name == "shared" else None
                estimates.append(gains.mean_gain([*(scores[row] - scores[0])], weights, identities, prior))
            hits = [e.interval[0] <= 0 <= e.interval[1] for e in estimates]
            is_wrong = min(gains.holm({str(i): e.p for i, e in enumerate(estimates)}).values()) < 0.05
            outcomes.append((hits, is_wrong, float(np.median([e.interval[1] - e.interval[0] for e in estimates]))))
    found = {}
    for name, outcomes in measured.items():
        hits, wrong, lengths = zip(*outcomes, strict=True)
        of_methods = np.mean(hits, axis=0)
        found[name] = (of_methods.mean(), of_methods[watched - 1], np.mean(wrong), np.median(lengths))
    return found


def measure_looks(case: Case, first: int, draws: int) -> dict[str, tuple[float, float]]:
    """Return how often a method is wrongly called better or worse, and wrongly called the best, at any of the looks.

    There is a look after ``first`` seeds and after each further seed, up to those of the case.
    """
    rng, looks = np.random.default_rng(0), Looks(first, case.seeds)
    wrong = {"95 % each": np.zeros((draws, 2), bool), "spending": np.zeros((draws, 2), bool)}
    for draw in range(draws):
        scores = case.draw(rng)
        for seeds in range(first, case.seeds + 1):
            now = scores[:, :seeds]
            of_gains = _test_differences(now, 0, same_clients=case.same_clients)
            of_best = _test_differences(now, int(now.mean(axis=(1, 2)).argmax()), same_clients=case.same_clients)
            for name, level in (("95 % each", gains.LEVEL), ("spending", looks.level(seeds))):
                wrong[name][draw] |= (min(of_gains) < 1 - level, max(of_best) < 1 - level)
    return {name: (float(each[:, 0].mean()), float(each[:, 1].mean())) for name, each in wrong.items()}


def _test_differences(scores: np.ndarray, base: int, *, same_clients: bool) -> list[float]:
    """Return the p-values, after Holm's correction, of the differences of all methods from one of them."""
    methods, seeds, clients = scores.shape
    numbers = np.arange(seeds * clients).reshape(seeds, clients)
    identities = [*(numbers % clients if same_clients else numbers)]
    shared = gains.share_variance({str(row): [*scores[row].mean(axis=1)] for row in range(methods)})
    p = {}
    for row in range(methods):
        if row != base:
            prior = None if shared is None else shared.of_difference(str(row), str(base))
            p[str(row)] = gains.mean_gain(
                [*(scores[row] - scores[base])], [np.ones(clients)] * seeds, identities, prior
            ).p
    return [*gains.holm(p).values()]


def print_looks(draws: int) -> None:
    """Print a row for each simulated comparison whose seeds are added one by one."""
    print("methods,clients,looks,better or worse: 95 % each,better or worse: spending,best: 95 % each,best: spending")
    for methods, clients, samples in itertools.product((1, 5), (10, 60), (100,)):
        for first, most in ((3, 5), (3, 10)):
            found = measure_looks(Case(methods, most, clients, samples), first, draws)
            (of_gain, of_best), (spent_gain, spent_best) = found["95 % each"], found["spending"]
            rates = [f"{100 * rate:.1f} %" for rate in (of_gain, spent_gain, of_best, spent_best)]
            print(methods, clients, f"{first} to {most}", *rates, sep=",", flush=True)


def draw_fixed(
    rng: np.random.Generator, clients: int, seeds: int, samples: int, of_seeds: float, *, same_samples: bool
) -> tuple[float, list[tuple[np.ndarray, np.ndarray, np.ndarray]]]:
    """Return the mean gain of some clients, and for each seed the differences, clients and ids of their samples."""
    shape, differing = (clients, 5 * samples), 0.3
    gain = 0.05 + 0.1 * rng.normal(size=clients)
    once, is_kept, found = rng.random(shape), rng.random(shape) < 0.5, []
    split = rng.random(shape).argsort(axis=1)[:, :samples]
    for _ in range(seeds):
        if not same_samples:
            split = rng.random(shape).argsort(axis=1)[:, :samples]
        drawn = np.where(is_kept, once, rng.random(shape))
        of_seed = of_seeds * rng.normal()
        better = np.clip((differing + gain + of_seed) / 2, 0, differing)[:, None]
        difference = np.where(drawn < better, 1.0, np.where(drawn < differing, -1.0, 0.0))
        numbers = np.arange(clients)[:, None]
        ids = numbers * shape[1] + split
        found.append((difference[numbers, split].ravel(), np.repeat(np.arange(clients), samples), ids.ravel()))
    return float(np.clip(gain, -differing, differing).mean()), found


def print_fixed(draws: int) -> None:
    """Print a row for each simulated comparison of fixed clients."""
    print("clients,seeds,samples,of_seeds,same_samples,these,half,student,half_student,half_like_these")
    for clients, seeds in itertools.product((4, 8), (2, 3, 10)):
        for samples, of_seeds, same in itertools.product((20, 100), (0.0, 0.03), (True, False)):
            rng, hits, halves = np.random.default_rng(0), np.zeros((draws, 2), bool), np.zeros((draws, 3))
            for number in range(draws):
                truth, drawn = draw_fixed(rng, clients, seeds, samples, of_seeds, same_samples=same)
                by_client = [np.bincount(who, weights=each) / samples for each, who, _ in drawn]
                alike = gains.mean_gain(by_client, [np.ones(clients)] * seeds, [np.arange(clients)] * seeds)
                simple = gains.mean_difference([float(each.mean()) for each in by_client])
                these = fixed_clients.mean_gain(*zip(*drawn, strict=True))
                low, high = zip(*(estimate.interval for estimate in (these, simple, alike)), strict=True)
                hits[number] = (np.asarray(low) <= truth)[:2] & (truth <= np.asarray(high))[:2]
                halves[number] = 50 * np.subtract(high, low)
            (own, student), half = hits.mean(axis=0), np.median(halves, axis=0)
            numbers = f"{own:.3f},{half[0]:.1f},{student:.3f},{half[1]:.1f},{half[2]:.1f}"
            print(clients, seeds, samples, of_seeds, same, numbers, sep=",", flush=True)


def cases(quick: bool) -> list[Case]:
    """Return the simulated comparisons."""
    sizes = [(5, 3)] if quick else [*itertools.product((3, 5, 11), (3, 5, 10))]
    found = []
    for methods, seeds in sizes:
        for clients, samples in ((10, 100), (60, 20)) if quick else ((4, 100), (10, 100), (60, 20), (1000, 20)):
            found.append(Case(methods, seeds, clients, samples))
            found.append(Case(methods, seeds, clients, samples, spread=0.7))
            found.append(Case(methods, seeds, clients, samples, outlier=1))
            found.append(Case(methods, seeds, clients, samples, outlier=0))
            found.append(Case(methods, seeds, clients, samples, correlation=0.8))
            found.append(Case(methods, seeds, clients, samples, spread=0.7, same_clients=False))
    sizes_of_small = [(10, 100), (60, 20)] if quick else [(4, 100), (10, 100), (60, 20), (1000, 20)]
    for methods, (clients, samples) in itertools.product((1, 5), sizes_of_small):
        for of_seeds, same in itertools.product((0.001, 0.005), (True, False)):
            found.append(Case(methods, 3, clients, samples, of_seeds=of_seeds, same_clients=same))
    return found


def main() -> None:
    """Print a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="five methods, three seeds")
    parser.add_argument("--looks", action="store_true", help="seeds that are added until a best method is decided")
    parser.add_argument("--fixed", action="store_true", help="the interval for the clients of a table themselves")
    arguments = parser.parse_args()
    if arguments.fixed:
        print_fixed(arguments.draws)
        return
    if arguments.looks:
        print_looks(arguments.draws)
        return
    print("methods,seeds,clients,samples,of_seeds,spread,outlier,correlation,same_clients,", end="")
    print("coverage_alone,coverage,outlier_alone,outlier,error_alone,error,length")
    for case in cases(arguments.quick):
        found = measure(case, arguments.draws)
        facts = (case.methods, case.seeds, case.clients, case.samples, case.of_seeds)
        facts += (case.spread, case.outlier, case.correlation)
        pairs = zip(found["alone"], found["shared"], strict=True)
        *rates, (before, now) = pairs
        numbers = [f"{value:.3f}" for pair in rates for value in pair]
        print(
            *("" if fact is None else fact for fact in facts),
            case.same_clients,
            *numbers,
            f"{now / before:.2f}",
            sep=",",
            flush=True,
        )


if __name__ == "__main__":
    main()
