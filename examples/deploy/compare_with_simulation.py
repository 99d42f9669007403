"""Compare the predictions of hospitals with those of a simulation, and fail if a probability differs.

python examples/deploy/compare_with_simulation.py RUNS     RUNS has simulation/ and HOSPITAL/site/predictions/
"""

from __future__ import annotations

import sys
from pathlib import Path

import h5py
import numpy as np


def find_largest_difference(runs: Path, hospitals: list[str]) -> float:
    """Return the largest difference of a probability for a validation or test sample of ``hospitals``, in order."""
    largest = 0.0
    with h5py.File(runs / "simulation" / "predictions.h5") as simulated:
        for client, hospital in enumerate(hospitals):
            with h5py.File(runs / hospital / "site" / "predictions" / "predictions.h5") as own:
                for split in ("validation", "test"):
                    rows = slice(*simulated[split]["offsets"][client : client + 2])
                    largest = max(largest, float(np.abs(own[split]["p"][...] - simulated[split]["p"][rows]).max()))
    return largest


if __name__ == "__main__":
    found = find_largest_difference(Path(sys.argv[1]), ["cleveland", "hungary", "long-beach", "switzerland"])
    print(f"largest difference between a probability at a hospital and in the simulation: {found:g}")
    sys.exit(found != 0)
