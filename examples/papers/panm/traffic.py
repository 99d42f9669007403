"""Accuracy against what is sent: for each method of a comparison, that of clients' own models after so many MB.

python examples/papers/panm/traffic.py runs/panm/ablations/mnist-rotation-4
"""

from __future__ import annotations

import csv
import statistics
import sys
from pathlib import Path

BUDGETS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
"""Shares of what PANM sends."""
Curve = list[tuple[float, float]]
"""MB sent since the beginning, and validation accuracy then, round by round."""


def main() -> None:
    """Print one row per method, and a column per budget, as CSV."""
    folder = Path(sys.argv[1])
    curves: dict[str, list[Curve]] = {}
    for path in sorted(folder.glob("seed-*/*/rounds.csv")):
        # FedAvg goes on from the backbone, whose rounds are its own.
        method = {"backbone": "fedavg"}.get(path.parent.name, path.parent.name)
        curves.setdefault(method, []).append(curve(path))
    total = statistics.mean(each[-1][0] for each in curves["panm"])
    print("method", *(f"{share * total:.0f} MB" for share in BUDGETS), sep=",")
    for method, seeds in curves.items():
        cells = [[reached(each, share * total) for each in seeds] for share in BUDGETS]
        print(method, *(f"{statistics.mean(cell):.4f}" if None not in cell else "" for cell in cells), sep=",")


def curve(path: Path) -> Curve:
    """Return what ``rounds.csv`` holds of the rounds in which accuracy was measured."""
    total_mb, points = 0.0, []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            total_mb += sum(int(row[f"bytes_{link}"]) for link in ("up", "down", "peer")) / 1e6
            accuracy = row.get("personal_accuracy") or row["validation_accuracy"]
            points += [(total_mb, float(accuracy))] if accuracy else []
    return points


def reached(points: Curve, megabytes: float) -> float | None:
    """Return the accuracy in the last round within the budget, None if even the first costs more."""
    within = [accuracy for sent_mb, accuracy in points if sent_mb <= megabytes * (1 + 1e-9)]
    return within[-1] if within else None


if __name__ == "__main__":
    main()
