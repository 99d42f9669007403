"""PANM's comparisons that clusters.sh made, side by side: accuracy, precision, neighbours found, bytes and seconds.

python examples/papers/panm/combine.py runs/panm/clusters/*
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Metrics = dict[str, dict[str, Any]]
"""Metrics by name, of one method in one comparison."""


def main() -> None:
    """Print the tables in Markdown: a row a method, the best on average first, a column a comparison."""
    folders = [Path(name) for name in sys.argv[1:]]
    runs = {folder: _read(folder) for folder in folders}
    labels = {label for metrics in runs.values() for label in metrics}
    ordered = sorted(labels, key=lambda label: -statistics.mean(_accuracies(runs, label)))
    tables: dict[str, Callable[[Path, str], str]] = {
        "Accuracy / bottom decile, percent": lambda folder, label: (
            f"{_percent(runs[folder][label]['accuracy'])} / {_percent(runs[folder][label]['bottom_decile'])}"
        ),
        "Macro precision, percent": lambda folder, label: _percent(runs[folder][label]["macro_precision"]),
        "Precision / recall of neighbours in the last round": _neighbours,
        "GB sent / seconds": lambda folder, label: (
            f"{runs[folder][label]['megabytes']['value'] / 1000:.1f} / {runs[folder][label]['seconds']['value']:.0f}"
        ),
    }
    for title, cell in tables.items():
        print(f"{title}:\n")
        print(f"| method | {' | '.join(map(name_partition, folders))} |")
        print(f"|---|{'---:|' * len(folders)}")
        for label in ordered:
            cells = [cell(folder, label) if label in runs[folder] else "-" for folder in folders]
            if set(cells) != {"-"}:
                print(f"| `{label}` | {' | '.join(cells)} |")
        print()


def name_partition(folder: Path) -> str:
    """Return the folder's name if it begins with that of its dataset, as recipes name it, else the dataset's name."""
    manifests = sorted(folder.glob("partition-*/manifest.json"))
    if not manifests:
        return folder.name
    dataset = str(json.loads(manifests[0].read_text(encoding="utf-8"))["request"]["dataset"])
    return folder.name if dataset == "imported" or folder.name.startswith(dataset) else dataset


def _read(folder: Path) -> dict[str, Metrics]:
    comparison = json.loads((folder / "comparison" / "metrics.json").read_text(encoding="utf-8"))
    return {method["label"]: method["metrics"] for method in comparison["methods"]}


def _accuracies(runs: dict[Path, dict[str, Metrics]], label: str) -> list[float]:
    return [metrics[label]["accuracy"]["value"] for metrics in runs.values() if label in metrics]


def _percent(metric: dict[str, Any]) -> str:
    spread = metric.get("std_over_seeds")
    return f"{100 * metric['value']:.1f}" + (f" ± {100 * spread:.1f}" if spread else "")


def _neighbours(folder: Path, label: str) -> str:
    """Return means over the seeds, or "-" for a method without neighbours."""
    last = []
    for path in sorted(folder.glob(f"seed-*/{label}/neighbours.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            *_, row = csv.DictReader(file)
        last.append((float(row["precision"]), float(row["recall"])))
    return " / ".join(f"{statistics.mean(values):.2f}" for values in zip(*last, strict=True)) if last else "-"


if __name__ == "__main__":
    main()
