"""Test accuracy with few samples per client, of comparisons that few-samples.sh made: seen clients, then unseen ones.

python examples/few_samples.py runs/few-samples

A column is a dataset and the number of training samples per client.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

METHODS = ("fedavg", "fedavg-plus", "knn-per", "knn-per-extended@auto", "gaussian-head", "prior", "knn-peers")
DATA = ("writers", "emnist", "cifar10", "relabelled")
SAMPLES = (5, 15, 50)


def main() -> None:
    """Print both tables in Markdown."""
    runs = Path(sys.argv[1])
    settings = [f"{data}-{samples}" for data in DATA for samples in SAMPLES]
    made = {name: read_metrics(runs / name) for name in settings if (runs / name / "comparison").is_dir()}
    for group in ("seen", "unseen"):
        print(f"| method | {' | '.join(made)} |\n|---|{'---:|' * len(made)}")
        for method in METHODS:
            cells = [percent(metrics[method][f"accuracy_{group}"]) for metrics in made.values()]
            print(f"| `{method}` | {' | '.join(cells)} |")
        print()


def read_metrics(folder: Path) -> dict[str, Any]:
    """Return the metrics of a comparison by method."""
    metrics = json.loads((folder / "comparison" / "metrics.json").read_text(encoding="utf-8"))
    return {method["label"]: method["metrics"] for method in metrics["methods"]}


def percent(value: dict[str, Any]) -> str:
    """Return an accuracy and its standard deviation over seeds in percent."""
    spread = value.get("std_over_seeds")
    return f"{100 * value['value']:.1f}" + (f" ± {100 * spread:.1f}" if spread is not None else "")


if __name__ == "__main__":
    main()
