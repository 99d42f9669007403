"""The tables of what recipes of equal-tuning.sh made: accuracy and rank of each method by default and tuned.

python examples/equal_tuning.py runs/examples/equal-tuning/*
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

from pflcli.artifacts.kinds import evaluation
from pflcli.artifacts.reader import open_artifact
from pflcli.core.wording import as_typed


def scores(comparison: Path) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the test accuracy in percent by method, and what was chosen by validation samples."""
    metrics = evaluation.read(open_artifact(comparison / "comparison"))
    accuracy = {row["label"]: 100 * row["metrics"]["accuracy"]["value"] for row in metrics["methods"]}
    return accuracy, metrics.get("tune", {}).get("methods", {})


def ranks(accuracy: dict[str, float]) -> dict[str, int]:
    """Return the rank of each method, 1 the best; equal ones share the better rank."""
    return {name: 1 + sum(other > value for other in accuracy.values()) for name, value in accuracy.items()}


def swapped(before: dict[str, float], after: dict[str, float]) -> str:
    """Return how many pairs of methods stand in the opposite order, of all pairs."""
    pairs = list(itertools.combinations(before, 2))
    opposite = sum((before[a] - before[b]) * (after[a] - after[b]) < 0 for a, b in pairs)
    return f"{opposite} of {len(pairs)}"


def main(folders: list[Path]) -> None:
    """Print a row per setting, then the chosen values."""
    first, _ = scores(folders[0] / "defaults")
    methods = sorted(first)
    print("| setting | " + " | ".join(f"`{name}`" for name in methods) + " | pairs swapped |")
    print("|---|" + "---:|" * (len(methods) + 1))
    values = []
    for folder in folders:
        (before, _), (after, tuned) = (scores(folder / name) for name in ("defaults", "tuned"))
        places, tuned_places = ranks(before), ranks(after)
        cells = [f"{before[n]:.1f} ({places[n]}) → {after[n]:.1f} ({tuned_places[n]})" for n in methods]
        print(f"| {folder.name} | " + " | ".join(cells) + f" | {swapped(before, after)} |")
        for name in methods:
            facts = tuned.get(name, {"values": {}, "trials": 0, "grid": 0})
            words = ", ".join(f"{key}={as_typed(value)}" for key, value in facts["values"].items())
            values.append(f"| {folder.name} | `{name}` | {words} | {facts['trials']} of {facts['grid']} |")
    print("\n| setting | method | chosen | trials |\n|---|---|---|---:|", *values, sep="\n")


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:]])
