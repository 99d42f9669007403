"""Samplers, which choose the points of trials: a grid or random draws, or Optuna, which uses earlier trials."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pflcli.core import rng
from pflcli.core.errors import UsageError
from pflcli.workflow.tuning.space import Axis, Point, Space

MAX_PROPOSALS = 100
"""How often a point that has not been tried yet is drawn, or asked of Optuna."""


def sampler(name: str, space: Space, trials: int, default: Point, seed: int) -> Sampler:
    """Return the sampler ``name`` (grid, random or optuna) for at most ``trials`` trials.

    ``default`` comes first if the space contains it. A longer search begins with the trials of a shorter one. Raises
    UsageError if the sampler is not installed.
    """
    if name == "optuna":
        return Optuna(space, trials, default, seed)
    draw = _shuffle_grid if space.is_finite else _draw_points
    return Listed(draw(space, trials, default, rng.generator(seed, "tune")))


class Listed:
    """Points that do not depend on scores; ``count`` is their number."""

    def __init__(self, points: list[Point]) -> None:
        self.points, self.count = points, len(points)
        self._remaining = iter(points)

    def ask(self) -> Point:
        """Return the next point."""
        return next(self._remaining)

    def tell(self, accuracy: float | None) -> None:
        """Ignore the score."""


def _shuffle_grid(space: Space, trials: int, default: Point, draw: np.random.Generator) -> list[Point]:
    """Return the first ``trials`` points of a finite space: the default point, then the others in random order."""
    points = space.points()
    remaining = [point for point in points if point != default]
    first = [point for point in points if point == default]
    return [*first, *(remaining[place] for place in draw.permutation(len(remaining)))][:trials]


def _draw_points(space: Space, trials: int, default: Point, draw: np.random.Generator) -> list[Point]:
    """Return the default point and random ones, none of them twice; there may be fewer than ``trials``."""
    points = [default] if space.holds(default) else []
    for _ in range(MAX_PROPOSALS * trials):
        if len(points) == trials:
            break
        point = {axis.key: _draw_value(axis, draw) for axis in space.axes}
        points += [point] if point not in points else []
    return points


def _draw_value(axis: Axis, draw: np.random.Generator) -> Any:
    """Draw a value, from a range uniformly or, if it spans a factor of ten or more, uniformly on a log scale."""
    if axis.bounds is None:
        return axis.values[int(draw.integers(len(axis.values)))]
    low, high = axis.bounds
    if axis.is_whole and not axis.is_ratio:
        return int(draw.integers(int(low), int(high) + 1))
    value = math.exp(draw.uniform(math.log(low), math.log(high))) if axis.is_ratio else draw.uniform(low, high)
    return round(value) if axis.is_whole else _round(axis, value)


class Optuna:
    """Optuna's tree of Parzen estimators (Bergstra et al. 2011); the default point comes first.

    A point is tried twice only if Optuna proposes no other one in ``MAX_PROPOSALS`` attempts. Nothing is stored on
    disk: after an interruption the sampler proposes the same points again and receives the scores of the finished
    trials.
    """

    def __init__(self, space: Space, trials: int, default: Point, seed: int) -> None:
        try:
            import optuna
        except ImportError:
            raise UsageError(
                "--sampler optuna needs Optuna, which is not installed", "pip install 'pflcli[tune]'"
            ) from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        estimators = optuna.samplers.TPESampler(seed=rng.integer(seed, "tune") % 2**32)
        self._study = optuna.create_study(direction="maximize", sampler=estimators)
        self._failed = optuna.trial.TrialState.FAIL
        self._axes = {axis.key: _distribution(axis) for axis in space.axes}
        self._space = space
        if space.holds(default):
            self._study.enqueue_trial(default)
        self.count = min(trials, space.size) if space.is_finite else trials
        self._scored: list[tuple[Point, float | None]] = []
        self._current: tuple[Any, Point] | None = None

    def ask(self) -> Point:
        """Return the next point; it has not been tried yet if Optuna proposes such a point."""
        for tries in range(1, MAX_PROPOSALS + 1):
            trial = self._study.ask(self._axes)
            point = {axis.key: _round(axis, trial.params[axis.key]) for axis in self._space.axes}
            self._current = trial, point
            earlier = [accuracy for other, accuracy in self._scored if other == point]
            if not earlier or tries == MAX_PROPOSALS:
                break
            self._report(trial, earlier[0])
        return point

    def tell(self, accuracy: float | None) -> None:
        """Report the score of the last point to Optuna."""
        assert self._current is not None
        trial, point = self._current
        self._scored.append((point, accuracy))
        self._report(trial, accuracy)

    def _report(self, trial: Any, accuracy: float | None) -> None:
        if accuracy is None:
            self._study.tell(trial, state=self._failed)
        else:
            self._study.tell(trial, accuracy)


def _distribution(axis: Axis) -> Any:
    from optuna import distributions

    if axis.bounds is None:
        return distributions.CategoricalDistribution(axis.values)
    low, high = axis.bounds
    if axis.is_whole:
        return distributions.IntDistribution(int(low), int(high), log=axis.is_ratio)
    return distributions.FloatDistribution(low, high, log=axis.is_ratio)


def _round(axis: Axis, value: Any) -> Any:
    """Round a number of a range to four significant digits, so that the name of a trial's folder stays short."""
    if axis.bounds is None or axis.is_whole:
        return value
    return min(max(float(f"{value:.4g}"), axis.bounds[0]), axis.bounds[1])


Sampler = Listed | Optuna
"""Proposes points one after the other; for the same scores it proposes the same points."""
