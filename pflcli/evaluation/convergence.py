"""Warn if a run ended too early, with its validation accuracy still rising."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pflcli.artifacts.reader import Artifact
from pflcli.errors import GoneError
from pflcli.evaluation import round_costs

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


def find_warnings(groups: Mapping[str, Sequence[Artifact]]) -> list[str]:
    """Return a warning per number of rounds that names the methods whose validation accuracy was still rising.

    ``groups`` has the runs of each method, one per seed. The method that rose most comes first.
    """
    rising: dict[tuple[int, int], dict[str, float]] = {}
    for label, artifacts in groups.items():
        curve = _mean_curve(artifacts)
        risen = measure_rise(*curve) if curve else None
        if risen is not None and curve is not None:
            points, last = risen
            rising.setdefault((last, curve[0][-1]), {})[label] = points
    return [format_warning(points, last, total) for (last, total), points in rising.items()]


def format_warning(points: Mapping[str, float], last: int, total: int) -> str:
    """Return the warning for runs of ``total`` rounds: the rise of each method, and the option to type."""
    by_method = [f"{name} by {100 * risen:.1f}" for name, risen in sorted(points.items(), key=lambda item: -item[1])]
    return (
        f"validation accuracy still rose over the last {last} rounds, {', '.join(by_method)} points: "
        f"try --rounds {2 * total}"
    )


def select_measured(rows: Sequence[Mapping[str, Any]], column: str) -> tuple[list[int], list[float]]:
    """Return the rounds in which the accuracy in ``column`` was measured, and its values."""
    known = [(int(row["round"]), float(row[column])) for row in rows if row.get(column) not in ("", None)]
    known = [pair for pair in known if not math.isnan(pair[1])]
    return [t for t, _ in known], [a for _, a in known]


def _mean_curve(artifacts: Sequence[Artifact]) -> tuple[list[int], list[float]] | None:
    """Return the mean accuracy over seeds by round; None if the seeds were measured in different rounds."""
    curves = []
    for artifact in artifacts:
        try:
            column, rows = round_costs.read_rounds(artifact)
        except GoneError:
            return None
        curves.append(select_measured(rows, column))
    first = curves[0][0]
    if not first or any(rounds != first for rounds, _ in curves):
        return None
    return first, [float(mean) for mean in np.mean([accuracy for _, accuracy in curves], axis=0)]
