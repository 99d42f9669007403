"""What recipes of stacking.sh made, as tables: the stack beside the best single method, by test and by validation.

python examples/stacking.py runs/examples/stacking/*
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.reader import open_artifact
from pflcli.core import rng, scores
from pflcli.evaluation import client_identity
from pflcli.evaluation.metrics import gains

PLAIN = ("fedavg", "local", "fedavg-plus", "fedavg-plus@head", "knn-per")
SINGLE = {
    "backbone": (*PLAIN, "prior", "gaussian-head"),
    "all": (*PLAIN, "prior", "gaussian-head", "ditto", "fedper"),
    "plain": PLAIN,
}
"""What each stack pools."""


@dataclass(frozen=True)
class Run:
    """The answers of one method under one seed to test samples, and its accuracy on validation samples."""

    right: NDArray[np.bool_]
    offsets: NDArray[np.int64]
    ece: float
    validation: tuple[NDArray[np.bool_], NDArray[np.int64]] | None
    path: Path | None = None
    sample: NDArray[np.int64] | None = None

    @property
    def n(self) -> NDArray[np.int64]:
        """Test samples by client, (m,)."""
        return np.diff(self.offsets)

    @property
    def client(self) -> NDArray[np.float64]:
        """Accuracy by client, (m,)."""
        return scores.per_client(self.right, self.offsets)

    @property
    def accuracy(self) -> float:
        """Accuracy in points."""
        return 100 * float(self.right.mean())

    @property
    def decile(self) -> float:
        """Bottom decile in points."""
        return 100 * scores.bottom_decile(self.client)

    def on_validation(self) -> NDArray[np.float64]:
        """Accuracy on validation samples by client, (m,)."""
        assert self.validation is not None
        return scores.per_client(*self.validation)


def read(path: Path) -> Run:
    """Read one run."""
    artifact = open_artifact(path, "predictions")
    test = predictions.read(artifact, "test")
    known = None
    if predictions.has_split(artifact, "validation"):
        held_out = predictions.read(artifact, "validation")
        known = scores.correct(held_out.parts["p"], held_out.y), held_out.offsets
    ece = 100 * scores.calibration_error(test.parts["p"], test.y)
    return Run(scores.correct(test.parts["p"], test.y), test.offsets, ece, known, path, test.sample)


def per_client(runs: dict[str, Run], by_test: bool) -> Run:
    """Return what answers if each client takes the method that is best on its samples: of validation, or of test."""
    first = next(iter(runs.values()))
    table = np.stack([run.client if by_test else run.on_validation() for run in runs.values()])
    best = np.nan_to_num(table, nan=-1.0).argmax(axis=0)
    right = np.stack([run.right for run in runs.values()])[np.repeat(best, first.n), np.arange(len(first.right))]
    return Run(right, first.offsets, math.nan, None)


def row(folder: Path, seeds: list[int], pool: str, refit: bool) -> list[str]:
    """Return a row of the table."""
    names = SINGLE[pool]
    at = folder / "refit" if refit else folder
    singles = [{name: read(at / f"seed-{seed}" / name) for name in names} for seed in seeds]
    stacks = [read(folder / f"seed-{seed}" / f"stack@{pool}") for seed in seeds]
    base = [read(folder / f"seed-{seed}" / "fedavg") for seed in seeds]
    by_test = max(names, key=lambda name: float(np.mean([runs[name].accuracy for runs in singles])))
    best = [runs[by_test] for runs in singles]
    cells = [folder.name, f"{mean(base, 'accuracy'):.1f} / {mean(base, 'decile'):.0f}"]
    cells += [f"`{by_test}` {mean(best, 'accuracy'):.1f} / {mean(best, 'decile'):.0f}"]
    if not refit:
        chosen = [
            runs[max(names, key=lambda name: float(runs[name].validation[0].mean()))]  # type: ignore[index]
            for runs in singles
        ]
        own, bound = ([per_client(runs, by_test) for runs in singles] for by_test in (False, True))
        cells += [f"{mean(runs, 'accuracy'):.1f} / {mean(runs, 'decile'):.0f}" for runs in (chosen, own, bound)]
    cells += [f"{mean(stacks, 'accuracy'):.1f} / {mean(stacks, 'decile'):.0f}", difference(stacks, best)]
    if not refit:
        cells += [worse_off(stacks, base), worse_off(best, base)]
        cells += [f"{mean(best, 'ece'):.1f}", f"{mean(stacks, 'ece'):.1f}"]
    return cells


def mean(runs: list[Run], fact: str) -> float:
    """Return the mean over seeds."""
    return float(np.mean([getattr(run, fact) for run in runs]))


def difference(one: list[Run], other: list[Run]) -> str:
    """Return by how many points ``one`` is more accurate, with an interval over clients and seeds."""
    has_samples = [run.n > 0 for run in one]
    gain = [(a.client - b.client)[at] for a, b, at in zip(one, other, has_samples, strict=True)]
    weight = [run.n[at].astype(float) for run, at in zip(one, has_samples, strict=True)]
    # A client that has a name in the data, such as a writer, is the same under every seed.
    artifacts = {at: open_artifact(run.path) for at, run in enumerate(one) if run.path is not None}
    samples = {at: (run.sample, run.offsets) for at, run in enumerate(one) if run.sample is not None}
    known = client_identity.identify_clients(artifacts, samples)
    identities = [known[at][chosen] for at, chosen in enumerate(has_samples)]
    estimate = gains.mean_gain(gain, weight, identities)
    assert estimate is not None
    low, high = estimate.interval
    return f"{100 * estimate.mean:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def worse_off(runs: list[Run], base: list[Run]) -> str:
    """Return the share of clients that are worse off than with the global model, and what chance would give."""
    shares, differing = [], []
    for run, other in zip(runs, base, strict=True):
        tested = run.n > 0
        shares.append(float(((run.client - other.client)[tested] < 0).mean()))
        counts = np.diff(np.concatenate([[0], np.cumsum(run.right != other.right)])[run.offsets])
        differing.append(counts[tested])
    chance, _ = gains.estimate_chance(differing, rng.generator(0, "chance"), repeated=False)
    return f"{100 * np.mean(shares):.0f} ({100 * chance:.0f})"


def main() -> None:
    """Print a table for each pool, and one against single methods that learn from validation samples, too."""
    folders = [Path(name) for name in sys.argv[1:]]
    seeds = {at: sorted(int(path.parent.name[5:]) for path in at.glob("seed-*/stack@backbone")) for at in folders}
    heading = ["setting", "`fedavg`", "best single by test", "best single by validation", "best on own validation"]
    heading += ["bound: best on own test", "stack", "stack - best single by test", "worse off, stack (chance)"]
    heading += ["worse off, best single (chance)", "ECE %, best single", "ECE %, stack"]
    for pool, names in SINGLE.items():
        table(f"Pool: {', '.join(names)}", heading, [row(at, seeds[at], pool, False) for at in folders])
    refitted = [at for at in folders if all((at / "refit" / f"seed-{seed}" / "knn-per").exists() for seed in seeds[at])]
    short = ["setting", "`fedavg`", "best single with `--refit` by test", "stack", "stack - best single"]
    table("Against --refit", short, [row(at, seeds[at], "backbone", True) for at in refitted])
    variants(folders, seeds)


def variants(folders: list[Path], seeds: dict[Path, list[int]]) -> None:
    """Print the stack of one backbone without its gate and with exponents of clients' own."""
    rows = []
    for at in folders:
        base = [read(at / f"seed-{seed}" / "fedavg") for seed in seeds[at]]
        cells = [at.name]
        for form in ("backbone", "no-gate", "own"):
            runs = [read(at / f"seed-{seed}" / f"stack@{form}") for seed in seeds[at]]
            cells += [f"{mean(runs, 'accuracy'):.1f} / {mean(runs, 'decile'):.0f} / {worse_off(runs, base)}"]
        rows.append(cells)
    table("Accuracy / bottom decile / worse off", ["setting", "stack", "`--no-gate`", "`--own`"], rows)


def table(title: str, heading: list[str], rows: list[list[str]]) -> None:
    """Print a Markdown table."""
    print(f"\n{title}:\n")
    print(f"| {' | '.join(heading)} |\n|---|{'---:|' * (len(heading) - 1)}")
    for cells in rows:
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
