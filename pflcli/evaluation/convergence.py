"""Whether a run ended too early: its validation accuracy was still rising."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pflcli.artifacts.reader import Artifact
from pflcli.errors import GoneError
from pflcli.evaluation import time_to_target

_LEAST = 0.01
"""A rise that is worth a word: one point."""
_SURE = 2.0
"""The slope has to be so many of its standard errors."""
_POINTS = 4
"""Measured rounds without which nothing is said."""


def rise(rounds: Sequence[int], accuracy: Sequence[float]) -> tuple[float, int] | None:
    """Return by how much the accuracy rose over the last third of the measured rounds, and how many rounds these were.

    A straight line is fitted to them, at least four. None if it rises by less than a point, or so little that scatter
    may have done it.
    """
    if len(rounds) < _POINTS:
        return None
    count = max(_POINTS, math.ceil(len(rounds) / 3))
    t, a = np.asarray(rounds[-count:], dtype=float), np.asarray(accuracy[-count:], dtype=float)
    centred = t - t.mean()
    slope = float(centred @ (a - a.mean()) / (centred @ centred))
    residual = a - a.mean() - slope * centred
    error = math.sqrt(float(residual @ residual) / (count - 2) / float(centred @ centred))
    span = t[-1] - t[0]
    return (slope * span, int(span)) if slope * span >= _LEAST and slope > _SURE * error else None


def warnings(groups: Mapping[str, Sequence[Artifact]]) -> list[str]:
    """Return a sentence on the methods of ``groups`` (a seed each) whose validation accuracy was still rising.

    Methods with as many rounds stand in one sentence, those that rose most first.
    """
    rising: dict[tuple[int, int], dict[str, float]] = {}
    for label, artifacts in groups.items():
        curve = _mean_curve(artifacts)
        risen = rise(*curve) if curve else None
        if risen is not None and curve is not None:
            points, last = risen
            rising.setdefault((last, curve[0][-1]), {})[label] = points
    return [sentence(points, last, total) for (last, total), points in rising.items()]


def sentence(points: Mapping[str, float], last: int, total: int) -> str:
    """Return the warning about runs of ``total`` rounds: by how much each method rose, and what to type."""
    by_method = [f"{name} by {100 * risen:.1f}" for name, risen in sorted(points.items(), key=lambda item: -item[1])]
    return (
        f"validation accuracy still rose over the last {last} rounds, {', '.join(by_method)} points: "
        f"try --rounds {2 * total}"
    )


def measured(rows: Sequence[Mapping[str, Any]], column: str) -> tuple[list[int], list[float]]:
    """Return the rounds in which the accuracy of ``column`` was measured, and its values."""
    known = [(int(row["round"]), float(row[column])) for row in rows if row.get(column) not in ("", None)]
    known = [pair for pair in known if not math.isnan(pair[1])]
    return [t for t, _ in known], [a for _, a in known]


def _mean_curve(artifacts: Sequence[Artifact]) -> tuple[list[int], list[float]] | None:
    """Return the mean over seeds, or None if it is not known in the same rounds of each."""
    curves = []
    for artifact in artifacts:
        try:
            column, rows = time_to_target.rounds(artifact)
        except GoneError:
            return None
        curves.append(measured(rows, column))
    first = curves[0][0]
    if not first or any(rounds != first for rounds, _ in curves):
        return None
    return first, [float(mean) for mean in np.mean([accuracy for _, accuracy in curves], axis=0)]
