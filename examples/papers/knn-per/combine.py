"""Tables 2 and 3 of kNN-Per from comparisons that tables.sh made: accuracy / bottom decile, seen and unseen clients.

python examples/papers/knn-per/combine.py runs/knn-per/tables/*
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

METHODS = ("fedavg", "local", "fedavg-plus", "knn-per")


def main() -> None:
    """Print both tables in Markdown."""
    for number, who in ((2, "seen"), (3, "unseen")):
        print(f"Table {number}, clients {who} in training:\n")
        print(f"| dataset | clients | {' | '.join(f'`{name}`' for name in METHODS)} |")
        print(f"|---|---:|{'---:|' * len(METHODS)}")
        for folder in map(Path, sys.argv[1:]):
            found = json.loads((folder / "comparison" / "metrics.json").read_text(encoding="utf-8"))
            metrics = {method["label"]: method["metrics"] for method in found["methods"]}
            cells = [
                f"{_shown(metrics[name], 'accuracy', who)} / {_shown(metrics[name], 'bottom_decile', who)}"
                for name in METHODS
            ]
            clients = metrics["fedavg"][f"accuracy_{who}"]["n"] // len(found["methods"][0]["seeds"])
            print(f"| {folder.name} | {clients} | {' | '.join(cells)} |")
        print()


def _shown(metrics: dict[str, dict[str, float]], name: str, who: str) -> str:
    value = metrics[f"{name}_{who}"]
    spread = value.get("std_over_seeds")
    return f"{100 * value['value']:.1f}" + (f" ± {100 * spread:.1f}" if spread is not None else "")


if __name__ == "__main__":
    main()
