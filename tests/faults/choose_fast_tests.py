"""Choose the fast tests, which ``bash tests/run.sh`` runs.

    python tests/faults/choose_fast_tests.py MAP RESULTS.jsonl

They are the tests that were the first to kill a mutant, and as many others of at most ``LONGEST`` seconds as run every
line of the package that all such tests run; greedily, by new lines per second. Writes ``tests/fast.txt``, and adds
to ``tests/killers.tsv`` which test killed which mutant. ``code_mutants.py`` makes the map and the results.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import code_mutants

TESTS = Path(__file__).parents[1]
FAST = TESTS / "fast.txt"
KILLERS = TESTS / "killers.tsv"
LONGEST = 2.0
"""Seconds of a test that ran a line alone and killed no mutant, above which it is left to ``--all``."""
OVERHEAD = 0.03
"""Seconds that any test costs beside what it is measured to take."""


def choose(lines: NDArray[np.uint8], seconds: NDArray[np.float64], first: Iterable[int]) -> list[int]:
    """Return tests that run every line that any test runs: those of ``first``, and others by new lines per second."""
    kept, chosen = [*first], []
    new = np.bitwise_or.reduce(lines, axis=0) & ~np.bitwise_or.reduce(lines[kept], axis=0, initial=0)
    while new.any():
        best = int((np.bitwise_count(lines & new).sum(axis=1) / (seconds + OVERHEAD)).argmax())
        chosen.append(best)
        new &= ~lines[best]
    counts = np.unpackbits(lines[[*kept, *chosen]], axis=1).sum(axis=0)
    # What later tests run too is no reason for a slow one.
    for test in sorted(chosen, key=lambda test: -seconds[test]):
        own = np.unpackbits(lines[test]).astype(bool)
        if (counts[own] > 1).all():
            counts -= own
        else:
            kept.append(test)
    return sorted(kept)


def read_killers() -> dict[str, str]:
    """Return, for each mutant that a test kills, the test."""
    with KILLERS.open(newline="") as file:
        return dict(csv.reader(file, delimiter="\t"))


def write_killers(results: Path) -> None:
    """Add which test killed which mutant, from the results of ``code_mutants.py run``."""
    outcomes = code_mutants.read_results(results).values()
    pairs = [(facts["key"], facts["by"]) for facts in outcomes if facts["outcome"] == "killed"]
    tests = [(key, by.removeprefix("FAILED ").removeprefix("ERROR ").partition(" - ")[0]) for key, by in pairs]
    before = read_killers()
    with KILLERS.open("w", newline="") as file:
        csv.writer(file, delimiter="\t", lineterminator="\n").writerows(sorted({**before, **dict(tests)}.items()))


def main() -> None:
    """Write the list of fast tests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("map", type=Path)
    parser.add_argument("results", type=Path)
    arguments = parser.parse_args()
    write_killers(arguments.results)
    tests = code_mutants.TestMap(arguments.map)
    names, killers = sorted(name for name, facts in tests.tests.items() if facts["passed"]), {*read_killers().values()}
    rows = {name: row for row, name in enumerate(names)}
    columns = []
    for runners in tests.runners():
        column = np.zeros(len(names), bool)
        column[[rows[name] for name in runners]] = True
        columns.append(column)
    lines = np.packbits(np.stack(columns, axis=1), axis=1)
    seconds = np.asarray([tests.tests[name]["seconds"] for name in names])
    first = [row for row, name in enumerate(names) if name in killers]
    lines[(seconds > LONGEST) & ~np.isin(np.arange(len(names)), first)] = 0
    chosen = choose(lines, seconds, first)
    FAST.write_text("".join(f"{names[row]}\n" for row in chosen))
    print(f"{len(chosen)} of {len(names)} tests, {seconds[chosen].sum():.0f} of {seconds.sum():.0f} seconds")


if __name__ == "__main__":
    main()
