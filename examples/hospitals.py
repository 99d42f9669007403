"""Heart disease in four hospitals: answers beside FLamby's published ones, and methods over repeated splits.

    python examples/hospitals.py published runs/hospitals      # of comparisons that examples/hospitals.sh made
    python examples/hospitals.py repeated runs/hospitals 100   # makes what is not there yet, and prints the tables

A network of two logits moves their difference twice as fast as FLamby's single logit moves, by SGD as by Adam. So each
learning rate here, also that of FedYogi's server, is half of FLamby's: steps are then the same but for the initial
weights, whose difference spreads wider by the square root of two.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from pflcli import compare, partition
from pflcli.core.execution import Execution

HOSPITALS = ("cleveland", "hungary", "switzerland", "long-beach")
TRAIN, TEST = (199, 172, 30, 85), (104, 89, 16, 45)
PUBLISHED = {
    "fedavg": ((79, 75, 77, 76, 73), (62, 66, 67, 60, 65), (11, 12, 8, 12, 9), (28, 30, 26, 28, 32)),
    "local": ((76, 78, 76, 78, 80), (67, 66, 67, 66, 66), (13, 13, 10, 13, 9), (34, 31, 30, 29, 34)),
    "fedavg@yogi": ((79, 76, 80, 79, 81), (68, 65, 67, 66, 69), (12, 12, 12, 12, 11), (28, 30, 33, 31, 30)),
}
"""Right answers of FLamby's seeds 42 to 46 by hospital: FedAvg, own hospital alone, FedYogi."""
FINE_TUNING = {"fedavg": 0.7178, "fedavg-plus": 0.7351}
"""Accuracy of FLamby's example of fine-tuning: mean of hospitals and seeds."""

SETTINGS = {
    "model": "logistic", "rounds": 15, "participation": 1.0, "steps": 100, "batch_size": 4, "lr": 0.00158,
}  # fmt: skip
OPTIONS = {
    "fedavg-plus": {"steps": 100},
    "fedavg@yogi": {"server": "yogi", "server_lr": 0.005, "beta2": 0.999, "tau": 1e-8},
}
METHODS = ("fedavg", "local", "fedavg-plus", "fedavg@yogi")
STANDARDIZE = {"client": "each hospital by its own patients", "federation": "all hospitals by the same numbers"}

Table = dict[str, NDArray[np.float64]]
"""Accuracy by method: (seeds, hospitals), in the order of HOSPITALS."""


def accuracies(folder: Path) -> Table:
    """Read a comparison; a seed is a row, as are splits that differ with it."""
    cells: dict[str, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    with (folder / "comparison" / "clients.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            cells[row["method"]][int(row["seed"])][row["name"]] = float(row["accuracy"])
    return {
        method: np.asarray([[seeds[seed][name] for name in HOSPITALS] for seed in sorted(seeds)])
        for method, seeds in cells.items()
    }


def within(method: str, table: Table) -> list[bool]:
    """Return for each hospital whether its mean is in the range of the published seeds, give or take one patient."""
    right = table[method].mean(axis=0) * TEST
    return [min(seeds) - 1 <= mean <= max(seeds) + 1 for mean, seeds in zip(right, PUBLISHED[method], strict=True)]


def published(folder: Path) -> None:
    """Print right answers beside the published ones, and the gain by fine-tuning."""
    table = accuracies(folder / "published")
    print(markdown(["method", *(f"{name} (of {n})" for name, n in zip(HOSPITALS, TEST, strict=True)), "mean %"]))
    for method, ranges in PUBLISHED.items():
        cells = [
            f"{mean:.1f} ({min(seeds)} to {max(seeds)}){'' if is_within else ' **outside**'}"
            for mean, seeds, is_within in zip(
                table[method].mean(axis=0) * TEST, ranges, within(method, table), strict=True
            )
        ]
        published_mean = np.mean(np.asarray(ranges).T / TEST)
        print(line([f"`{method}`", *cells, f"{100 * table[method].mean():.1f} ({100 * published_mean:.1f})"]))
    table = accuracies(folder / "fine-tuning")
    means = {method: table[method].mean(axis=1) for method in FINE_TUNING}
    better = int((means["fedavg-plus"] >= means["fedavg"]).sum())
    print("\nFine-tuning, mean over hospitals:\n")
    print(markdown(["method", "here %", "FLamby %"]))
    for name, published_mean in FINE_TUNING.items():
        print(line([f"`{name}`", f"{100 * means[name].mean():.1f}", f"{100 * published_mean:.1f}"]))
    print(line(["seeds in which fine-tuning is not worse", f"{better} of 5", "5 of 5"]))


def repeated(folder: Path, splits: int, standardizations: Iterable[str] = STANDARDIZE) -> None:
    """Compare all methods over stratified splits, with each way to standardize, and print the tables."""
    tables = {}
    for standardize in standardizations:
        at = folder / f"standardize-{standardize}"
        quiet = Execution(threads=1)
        for split in range(splits):
            options = {"standardize": standardize, "split": split}
            partition(
                "heart-disease", at / f"p{split}", keep_test=True, fractions=(1, 0, 0), options=options, seed=split,
                execution=quiet,
            )  # fmt: skip
        sources = [at / f"p{split}" for split in range(splits)]
        compare(sources, at / "c", methods=METHODS, options=OPTIONS, settings=SETTINGS, execution=quiet)
        tables[standardize] = accuracies(at / "c")
    for standardize, table in tables.items():
        print(f"\nStandardized: {STANDARDIZE[standardize]}\n")
        summarize(table, table["fedavg"])
    if len(tables) > 1:
        print("\nStandardized by its own patients, against the same method standardized over all hospitals\n")
        client, federation = (tables[how] for how in STANDARDIZE)
        print(markdown(["method", *HOSPITALS, "mean of hospitals"]))
        for method in METHODS:
            print(line([f"`{method}`", *gains(client[method] - federation[method])]))


def summarize(table: Table, baseline: NDArray[np.float64]) -> None:
    """Print accuracy and gain over the baseline by hospital, and how often each is worse off."""
    print(markdown(["method", *HOSPITALS, "mean of hospitals"]))
    for method in METHODS:
        accuracy = table[method]
        print(line([f"`{method}`", *(f"{100 * mean:.1f}" for mean in [*accuracy.mean(axis=0), accuracy.mean()])]))
        if method != "fedavg":
            print(line([f"`{method}`: gain", *gains(accuracy - baseline)]))
            worse = [float((accuracy[:, place] < baseline[:, place]).mean()) for place in range(len(HOSPITALS))]
            print(line([f"`{method}`: worse in", *(f"{100 * share:.0f} %" for share in worse), ""]))


def gains(differences: NDArray[np.float64]) -> list[str]:
    """Return the mean difference in points with its interval, for each hospital and for their mean."""
    ratios = [test / train for test, train in zip(TEST, TRAIN, strict=True)]
    columns = [*differences.T, differences.mean(axis=1)]
    return [
        f"{100 * column.mean():+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
        for column, (low, high) in zip(
            columns, (interval(c, r) for c, r in zip(columns, [*ratios, max(ratios)], strict=True)), strict=True
        )
    ]


def interval(differences: NDArray[np.float64], ratio: float) -> tuple[float, float]:
    """Return the 95 % interval of a mean over splits (n,) that share patients; ``ratio`` is of test to training ones.

    Corrected resampled t-test: Nadeau & Bengio (2003), https://doi.org/10.1023/A:1024068626366, section 3. Splits of
    one data set are no independent repetitions; their plain interval would shrink to nothing with their number.
    """
    n, mean = len(differences), float(differences.mean())
    error = float(differences.std(ddof=1)) * np.sqrt(1 / n + ratio)
    reach = float(student.ppf(0.975, n - 1)) * error
    return mean - reach, mean + reach


def markdown(heading: Sequence[str]) -> str:
    """Return the heading of a table."""
    return f"{line(heading)}\n|{'---|' * len(heading)}"


def line(cells: Sequence[str]) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    if sys.argv[1] == "published":
        published(Path(sys.argv[2]))
    else:
        repeated(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] or STANDARDIZE)
