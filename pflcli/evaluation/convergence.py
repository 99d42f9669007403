"""Warn if a run ended too early, with its validation accuracy still rising."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pflcli.core.scores import gain_per_doubling
from pflcli.evaluation.presentation.conclusion import spell_advice

Curve = tuple[Sequence[int], Sequence[float]]
_MORE = 4
"""How many times as many rounds a warning advises: two doublings."""
_MIN_RISE = 0.01
"""Smallest gain per doubling that is reported: one point."""
_MIN_SAMPLES = 3
"""Smallest gain per doubling that is reported, in validation samples."""
_MIN_Z = 3.0
"""Smallest gain per doubling that is reported, in standard errors."""
_MIN_POINTS = 4
"""Least number of measured rounds to fit a line to."""


def measure_rise(curves: Sequence[Curve], samples: int = 0) -> float | None:
    """Return the mean gain of accuracy of runs per doubling of the rounds; None if it is small.

    ``curves`` has the measured rounds and accuracies of each run, on ``samples`` of one run. A run's gain is the slope
    of a line through accuracy over log2(round), fitted from a quarter of its rounds on to at least four measurements.
    The mean is small below one point, below three samples, and below three standard errors.
    """
    fits = [gain_per_doubling(np.asarray(t, float), np.asarray(values, float), _MIN_POINTS) for t, values in curves]
    if not (known := [fit for fit in fits if fit is not None]):
        return None
    slopes, errors = np.array(known).T
    rise, least = float(slopes.mean()), max(_MIN_RISE, _MIN_SAMPLES / samples if samples else 0.0)
    return rise if rise >= least and rise > _MIN_Z * np.linalg.norm(errors) / len(known) else None


def measure_mean_rise(curves: Sequence[Curve], samples: int, *, stopped: bool = False) -> dict[str, Any] | None:
    """Return the ``rise`` of ``measure_rise``, the ``rounds`` of the longest run, and how many are ``advised``.

    None if the accuracy was not rising. If runs were ``stopped`` by a number of rounds as ``--patience``, more rounds
    would not help, and "flat" is advised: it goes on while accuracy rises.
    """
    if (risen := measure_rise(curves, samples)) is None:
        return None
    last = max(rounds[-1] for rounds, _ in curves if rounds)
    return {"rise": risen, "rounds": last, "advised": "flat" if stopped else _MORE * last}


def is_stopped(settings: Mapping[str, Any], rounds: int) -> bool:
    """Return whether a number of rounds as ``--patience`` ended a run with these settings after ``rounds``."""
    return settings.get("patience") != "flat" and 0 < rounds < int(settings.get("rounds", 0))


def find_warnings(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a warning per number of rounds that names the methods whose validation accuracy was still rising.

    ``rows`` are those of a table. The method that rose most comes first.
    """
    rising: dict[tuple[int, int | str], dict[str, float]] = {}
    for row in rows:
        if fact := row.get("unfinished"):
            rising.setdefault((fact["rounds"], fact["advised"]), {})[row["label"]] = fact["rise"]
    return [format_warning(points, *facts) for facts, points in rising.items()]


def format_warning(points: Mapping[str, float], total: int, advised: int | str) -> str:
    """Return the warning for runs of ``total`` rounds: the gain of each method, and the option to type."""
    by_method = [f"{name} {100 * risen:+.1f}" for name, risen in sorted(points.items(), key=lambda item: -item[1])]
    return (
        f"validation accuracy still rose at round {total}: {', '.join(by_method)} points per doubling of the rounds: "
        f"type {spell_advice(advised)}"
    )


def select_measured(rows: Sequence[Mapping[str, Any]], column: str) -> tuple[list[int], list[float]]:
    """Return the rounds in which the ``column`` was measured, and its values."""
    known = [(int(row["round"]), float(row[column])) for row in rows if row.get(column) not in ("", None)]
    known = [pair for pair in known if not math.isnan(pair[1])]
    return [t for t, _ in known], [a for _, a in known]
