"""Tables 2 and 3 of kNN-Per from comparisons that tables.sh made: accuracy / bottom decile, seen and unseen clients.

python examples/papers/knn-per/combine.py runs/knn-per/tables/*

Table 2 is of all clients where a comparison exists in which all of them train, else of those seen in training. Table 3
gives the accuracy on training samples in parentheses where it is known.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

METHODS = ("local", "fedavg", "fedavg-plus", "clustered-fl", "ditto", "fedrep", "apfl", "pfedgp", "knn-per")
"""The methods of the paper, in its order."""
RIVALS = ("knn-per-plus", "pfedme", "fedper", "prior")
"""Further methods, in columns of their own if a comparison has them."""

Metrics = Mapping[str, Mapping[str, Any]]


def main() -> None:
    """Print both tables in Markdown."""
    folders = [Path(name) for name in sys.argv[1:]]
    late = {folder: path for folder in folders for path in folder.glob("new-clients-0.*")}
    without_unseen = {folder: folder / "new-clients-0" for folder in folders if (folder / "new-clients-0").is_dir()}
    show(2, "clients that train", {folder: (without_unseen.get(folder) or late[folder]) for folder in folders}, "seen")
    show(3, "clients unseen in training", late, "unseen")


def show(number: int, title: str, runs: Mapping[Path, Path], group: str) -> None:
    """Print one table."""
    tables = {}
    for folder, run in runs.items():
        metrics = json.loads((run / "comparison" / "metrics.json").read_text(encoding="utf-8"))
        tables[name_partition(folder)] = {method["label"]: method for method in metrics["methods"]}
    columns = [*METHODS, *(name for name in RIVALS if any(name in rows for rows in tables.values()))]
    print(f"Table {number}, {title}:\n")
    print(f"| dataset | clients | {' | '.join(f'`{name}`' for name in columns)} |")
    print(f"|---|---:|{'---:|' * len(columns)}")
    for name, rows in tables.items():
        clients = metric(rows["fedavg"]["metrics"], "accuracy", group)["n"] // len(rows["fedavg"]["seeds"])
        cells = [cell(rows[column]["metrics"], group) if column in rows else "-" for column in columns]
        print(f"| {name} | {clients} | {' | '.join(cells)} |")
    print()


def name_partition(folder: Path) -> str:
    """Return the folder's name if it begins with that of its dataset, as recipes name it, else the dataset's name."""
    manifests = sorted(folder.glob("*/partition-*/manifest.json"))
    if not manifests:
        return folder.name
    dataset = str(json.loads(manifests[0].read_text(encoding="utf-8"))["request"]["dataset"])
    return folder.name if dataset == "imported" or folder.name.startswith(dataset) else dataset


def metric(metrics: Metrics, name: str, group: str) -> Mapping[str, Any]:
    """Return a metric over a group of clients, or over all where everybody trained."""
    return metrics.get(f"{name}_{group}", metrics[name])


def cell(metrics: Metrics, group: str) -> str:
    """Return accuracy and bottom decile, with the spread over seeds."""
    text = f"{percent(metric(metrics, 'accuracy', group))} / {percent(metric(metrics, 'bottom_decile', group))}"
    trained = metrics.get(f"train_accuracy_{group}")
    return f"{text} ({percent(trained)})" if trained and group == "unseen" else text


def percent(value: Mapping[str, Any]) -> str:
    """Return percent."""
    spread = value.get("std_over_seeds")
    return f"{100 * value['value']:.1f}" + (f" ± {100 * spread:.1f}" if spread is not None else "")


if __name__ == "__main__":
    main()
