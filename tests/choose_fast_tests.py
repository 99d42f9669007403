"""Choose the fast tests, which ``bash tests/run.sh`` runs: ``python tests/choose_fast_tests.py .coverage junit.xml``.

They are the tests in ``tests/killers.tsv``, each the first to kill a mutant of mutmut, and as many others as run every
line of the package that all tests run; greedily, by new lines per second. The list is written to ``tests/fast.txt``.
The lines and seconds of all tests come from pytest with the plugin pytest-cov:

    python -m pytest -n 2 --cov=pflcli --cov-context=test --junitxml=junit.xml
"""

from __future__ import annotations

import argparse
import csv
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

TESTS = Path(__file__).parent
FAST = TESTS / "fast.txt"
KILLERS = TESTS / "killers.tsv"
OVERHEAD = 0.03
"""Seconds that any test costs beside what it is measured to take."""


def read_seconds(junit: Path) -> dict[str, float]:
    """Return the seconds of each test that passed in a JUnit file, with its set-up."""
    seconds = {}
    for case in ET.parse(junit).iter("testcase"):
        if not any(child.tag in ("failure", "error", "skipped") for child in case):
            path = case.attrib["classname"].replace(".", "/") + ".py"
            seconds[f"{path}::{case.attrib['name']}"] = float(case.attrib["time"])
    return seconds


def read_lines(coverage_file: Path, tests: Iterable[str]) -> NDArray[np.uint8]:
    """Return which lines each test runs, in bits: (number of tests, number of lines / 8)."""
    from coverage import CoverageData

    rows = {test: row for row, test in enumerate(tests)}
    data = CoverageData(str(coverage_file))
    data.read()
    columns = []
    for file in sorted(data.measured_files()):
        for contexts in data.contexts_by_lineno(file).values():
            names = {context.rpartition("|")[0] for context in contexts if context}
            if "" not in contexts and (own := [rows[name] for name in names if name in rows]):
                column = np.zeros(len(rows), bool)
                column[own] = True
                columns.append(column)
    return np.packbits(np.stack(columns, axis=1), axis=1)


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


def main() -> None:
    """Write the fast tier to ``fast.txt``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("coverage", type=Path)
    parser.add_argument("junit", type=Path)
    arguments = parser.parse_args()
    times = read_seconds(arguments.junit)
    names, killers = sorted(times), {*read_killers().values()}
    lines = read_lines(arguments.coverage, names)
    seconds = np.asarray([times[name] for name in names])
    chosen = choose(lines, seconds, [row for row, name in enumerate(names) if name in killers])
    FAST.write_text("".join(f"{names[row]}\n" for row in chosen))
    print(f"{len(chosen)} of {len(names)} tests, {seconds[chosen].sum():.0f} of {seconds.sum():.0f} seconds")


if __name__ == "__main__":
    main()
