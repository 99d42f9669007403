"""Warn if a run ended too early, with its validation accuracy still rising."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pflcli.core.scores import gain_per_doubling
from pflcli.evaluation.presentation.conclusion import spell_advice

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


def measure_rise(rounds: Sequence[int], accuracy: Sequence[float], samples: int = 0) -> float | None:
    """Return the gain of accuracy per doubling of the rounds, measured on a number of ``samples``; None if it is small.

    It is the slope of a line through accuracy over log2(round), fitted from a quarter of the rounds on to at least four
    measurements. It is small below one point, below three samples, and below three standard errors.
    """
    fitted = gain_per_doubling(np.asarray(rounds, dtype=float), np.asarray(accuracy, dtype=float), _MIN_POINTS)
    least = max(_MIN_RISE, _MIN_SAMPLES / samples if samples else 0.0)
    return fitted[0] if fitted is not None and fitted[0] >= least and fitted[0] > _MIN_Z * fitted[1] else None


def measure_mean_rise(
    curves: Sequence[tuple[Sequence[int], Sequence[float]]], samples: int, *, stopped: bool = False
) -> dict[str, Any] | None:
    """Return the ``rise`` of the mean accuracy over seeds per doubling, its ``rounds``, and how many are ``advised``.

    ``curves`` has the measured rounds and accuracies of each seed, on ``samples`` of one seed. None if the accuracy was
    not rising, or if the seeds were measured in different rounds. If runs were ``stopped`` by a number of rounds as
    ``--patience``, more rounds would not help, and "flat" is advised: it goes on while accuracy rises.
    """
    first = list(curves[0][0])
    if not first or any(list(rounds) != first for rounds, _ in curves):
        return None
    risen = measure_rise(first, np.mean([accuracy for _, accuracy in curves], axis=0).tolist(), samples)
    advised = "flat" if stopped else _MORE * first[-1]
    return None if risen is None else {"rise": risen, "rounds": first[-1], "advised": advised}


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
