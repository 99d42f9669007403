"""What recipes of few-validation-samples.sh made, as a table: kNN-Per with and without ``cross_validate``, and others.

python examples/few_validation_samples.py runs/examples/few-validation-samples/*

A cell is an accuracy on test samples and, after a slash, on validation samples, in percent and a mean over seeds.
Validation samples are predicted with choices that were made without them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from pflcli.artifacts.kinds import partition, predictions
from pflcli.artifacts.reader import open_artifact

METHODS = ("fedavg", "knn-per@paper", "knn-per", "knn-per-plus", "knn-peers")
FEW = 5


def main() -> None:
    """Print the table in Markdown."""
    print("| federation | validation samples per client | clients with fewer than 5 |", *(f"`{m}` |" for m in METHODS))
    print(f"|---|---:|---:|{'---:|' * len(METHODS)}")
    for runs in map(Path, sys.argv[1:]):
        sizes = np.concatenate(
            [partition.read_sizes(open_artifact(path))[:, 1] for path in sorted(runs.glob("partition-*"))]
        )
        cells = [f"{np.median(sizes):g}", f"{(sizes < FEW).mean():.0%}", *(describe(runs, each) for each in METHODS)]
        print(f"| {runs.name} | {' | '.join(cells)} |")


def describe(runs: Path, method: str) -> str:
    """Return the accuracies of a method."""
    made = sorted((runs / "compared").glob(f"seed-*/{method}"))
    return " / ".join(f"{100 * np.mean([score(path, split) for path in made]):.1f}" for split in ("test", "validation"))


def score(path: Path, split: str) -> float:
    """Return the share of the samples of a split that are predicted correctly."""
    stored = predictions.read(open_artifact(path), split)
    return float((stored.parts["p"].argmax(axis=1) == stored.y).mean())


if __name__ == "__main__":
    main()
