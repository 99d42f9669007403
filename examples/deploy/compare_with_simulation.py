"""Compare the predictions of hospitals with those of a simulation, and fail if a probability or a score differs.

python examples/deploy/compare_with_simulation.py RUNS     RUNS has simulation/ and HOSPITAL/site/

A simulation of several methods is compared run by run, and its table with that of the server in RUNS/real.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import h5py
import numpy as np

HOSPITALS = ["cleveland", "hungary", "long-beach", "switzerland"]


def find_largest_difference(simulation: Path, sites: list[Path]) -> float:
    """Return the largest difference of a probability for a validation or test sample of the ``sites``, in order."""
    largest = 0.0
    with h5py.File(simulation / "predictions.h5") as simulated:
        for client, site in enumerate(sites):
            with h5py.File(site / "predictions" / "predictions.h5") as own:
                for split in ("validation", "test"):
                    rows = slice(*simulated[split]["offsets"][client : client + 2])
                    largest = max(largest, float(np.abs(own[split]["p"][...] - simulated[split]["p"][rows]).max()))
    return largest


def read_scores(comparison: Path) -> dict[str, dict[str, str]]:
    """Return the numbers of a table by method, without seconds, which no two runs share."""
    with (comparison / "table.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    return {row["method"]: {key: value for key, value in row.items() if "seconds" not in key} for row in rows}


def main(runs: Path) -> bool:
    """Print what differs, and return whether nothing does."""
    sites = [runs / hospital / "site" for hospital in HOSPITALS]
    simulation, several = runs / "simulation", (runs / "simulation" / "comparison").exists()
    names = [each.relative_to(simulation) for each in sorted(simulation.glob("seed-*/*")) if several]
    made = [name for name in names if all((site / name / "predictions").exists() for site in sites)] or [Path()]
    found = max(find_largest_difference(simulation / name, [site / name for site in sites]) for name in made)
    print(f"largest difference between a probability at a hospital and in the simulation: {found:g}")
    are_equal = not several or read_scores(runs / "real" / "comparison") == read_scores(simulation / "comparison")
    if several:
        print(f"the tables of {len(made)} runs are {'equal, but for seconds' if are_equal else 'not equal'}")
    return found == 0 and are_equal


if __name__ == "__main__":
    sys.exit(not main(Path(sys.argv[1])))
