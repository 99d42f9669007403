"""Run commands in one process for a long time, and watch its memory and its open files.

    python tests/faults/soak.py [MINUTES]

All commands, each with other seeds every time, and some that are refused. The first half of the turns, at least two of
each method, is left to what is kept for good (compiled code, imported modules, freed memory that the allocator keeps).
Over the rest, at least two turns of each method as well, memory may grow by less than 1 MB a minute, by the median
slope between any two measurements (Theil and Sen), and the number of open descriptors not at all.
"""

from __future__ import annotations

import itertools
import shutil
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import trying
from trying import Tally

FEW = ("--model", "mlp", "--rounds", 3, "--participation", 0.5, "--batch-size", 8, "--threads", 1)
SIX = ("--scheme", "dirichlet", "--clients", 6, "--set", "alpha=1")
METHODS = ("fedavg", "ditto", "fedham", "local", "panm", "fedem", "pfedgp", "scaffold")
LIMIT = 1.0
"""Megabytes a minute."""


def lines(number: int) -> list[tuple[object, ...]]:
    """Return the command lines of one turn, in an empty folder."""
    seed, method = ("--seed", number), METHODS[number % len(METHODS)]
    return [
        ("import", "../in/data.npz", "-o", "data"),
        ("partition", "data", *SIX, *seed, "-o", "p"),
        ("train-global", "p", *FEW, *seed, "-o", "b"),
        ("extract", "b", "-o", "e"),
        ("build-datastore", "e", "-o", "d"),
        ("update-datastore", "d", "e", "-o", "u"),
        ("personalize", "knn-per", "d", "-o", "knn"),
        ("personalize", method, "p", *FEW, *seed, "-o", "m"),
        ("evaluate", "knn", "m", "-o", "ev"),
        ("sweep", "e", "-o", "sw"),
        ("stack", "knn", "-o", "st"),
        ("tune", method, "p", *FEW, *seed, "--search", "training.epochs=1,2", "-o", "t"),
        ("compare", "p", "--methods", "fedavg,fedavg-plus,stack", *FEW, "--seeds", number, "-o", "c"),
        ("show", "knn", "--lineage", "--verify"),
        ("show", "p", "--plot", "p.png"),
        ("evaluate", "p", "-o", "refused"),
        ("train-global", "p", "--rounds", -1, "-o", "refused"),
    ]


def megabytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def slope(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Return the median slope between any two points: a single jump, which the allocator may take, does not move it."""
    first, second = np.triu_indices(len(x), 1)
    return float(np.median((y[second] - y[first]) / (x[second] - x[first])))


def turn(number: int, folder: Path, tally: Tally) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for line in lines(number):
        ended = trying.within(line, folder)
        tally.tried += 1
        where = f"turn {number}, {' '.join(map(str, line))}: {ended}"
        if ended.talks_nonsense():
            tally.fault("tracebacks", where)
        elif bool(ended.code) != ("refused" in line):
            tally.fault("broken", where)
        if ended.seconds > 10 * trying.PATIENCE:  # one core may serve many
            tally.fault("hangs", where)


def main() -> None:
    args = trying.arguments(__doc__, 30, "minutes")
    trying.warm()
    tally, measurements = Tally(f"soak of {args.count} minutes"), []
    with trying.place() as root:
        (root / "in").mkdir()
        trying.inputs(root / "in")
        began = time.monotonic()
        for number in itertools.count():
            turn(number, root / "turn", tally)
            minutes = (time.monotonic() - began) / 60
            measurements.append((minutes, megabytes(), descriptors()))
            if minutes > args.count and len(measurements) >= 4 * len(METHODS):
                break
            if number % 20 == 0:
                print(f"{minutes:.1f} min: {measurements[-1][1]:.0f} MB, {measurements[-1][2]} descriptors", flush=True)
    steady = np.asarray(measurements[len(measurements) // 2 :])
    growth = slope(steady[:, 0], steady[:, 1])
    if growth > LIMIT:
        tally.fault("broken", f"memory grows by {growth:.2f} MB a minute")
    if steady[-1, 2] > steady[0, 2]:
        tally.fault("broken", f"descriptors: {steady[0, 2]:.0f}, then {steady[-1, 2]:.0f}")
    turns = f"{len(measurements)} turns, {steady[0, 1]:.0f} to {steady[-1, 1]:.0f} MB"
    tally.notes.append(f"{turns}, {growth:+.2f} MB a minute, {steady[-1, 2]:.0f} descriptors")
    trying.heading()
    print(tally.row(), flush=True)
    trying.report([tally])


if __name__ == "__main__":
    main()
