"""Warn if a run ended too early, with its validation accuracy still rising."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_MIN_RISE = 0.01
"""Smallest rise that is reported: one point."""
_MIN_Z = 2.0
"""Smallest slope that is reported, in standard errors."""
_MIN_POINTS = 4
"""Least number of measured rounds to fit a line to."""


def measure_rise(rounds: Sequence[int], accuracy: Sequence[float]) -> tuple[float, int] | None:
    """Return the rise of the accuracy over the last third of the measured rounds, and the number of these rounds.

    The rise is that of a straight line fitted to at least four measured rounds. None if it is below one point, or below
    two standard errors.
    """
    if len(rounds) < _MIN_POINTS:
        return None
    count = max(_MIN_POINTS, math.ceil(len(rounds) / 3))
    t, a = np.asarray(rounds[-count:], dtype=float), np.asarray(accuracy[-count:], dtype=float)
    centred = t - t.mean()
    slope = float(centred @ (a - a.mean()) / (centred @ centred))
    residual = a - a.mean() - slope * centred
    error = math.sqrt(float(residual @ residual) / (count - 2) / float(centred @ centred))
    span = t[-1] - t[0]
    return (slope * span, int(span)) if slope * span >= _MIN_RISE and slope > _MIN_Z * error else None


def measure_mean_rise(curves: Sequence[tuple[Sequence[int], Sequence[float]]]) -> dict[str, Any] | None:
    """Return the ``rise`` of the mean accuracy over seeds, the rounds that it took (``over``), and all ``rounds``.

    ``curves`` has the measured rounds and accuracies of each seed. None if the accuracy was not rising, or if the seeds
    were measured in different rounds.
    """
    first = list(curves[0][0])
    if not first or any(list(rounds) != first for rounds, _ in curves):
        return None
    risen = measure_rise(first, np.mean([accuracy for _, accuracy in curves], axis=0).tolist())
    return None if risen is None else {"rise": risen[0], "over": risen[1], "rounds": first[-1]}


def find_warnings(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a warning per number of rounds that names the methods whose validation accuracy was still rising.

    ``rows`` are those of a table. The method that rose most comes first.
    """
    rising: dict[tuple[int, int], dict[str, float]] = {}
    for row in rows:
        if fact := row.get("unfinished"):
            rising.setdefault((fact["over"], fact["rounds"]), {})[row["label"]] = fact["rise"]
    return [format_warning(points, last, total) for (last, total), points in rising.items()]


def format_warning(points: Mapping[str, float], last: int, total: int) -> str:
    """Return the warning for runs of ``total`` rounds: the rise of each method, and the option to type."""
    by_method = [f"{name} by {100 * risen:.1f}" for name, risen in sorted(points.items(), key=lambda item: -item[1])]
    return (
        f"validation accuracy still rose over the last {last} rounds, {', '.join(by_method)} points: "
        f"try --rounds {2 * total}"
    )


def select_measured(rows: Sequence[Mapping[str, Any]], column: str) -> tuple[list[int], list[float]]:
    """Return the rounds in which the ``column`` was measured, and its values."""
    known = [(int(row["round"]), float(row[column])) for row in rows if row.get(column) not in ("", None)]
    known = [pair for pair in known if not math.isnan(pair[1])]
    return [t for t, _ in known], [a for _, a in known]
