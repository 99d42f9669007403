"""Samplers, which choose the point of the next trial: a grid in random order, or Optuna, which uses earlier trials."""

from __future__ import annotations

from typing import Any, Protocol

from pflcli import rng
from pflcli.errors import UsageError, closest
from pflcli.tuning.space import Axis, Point, Space

SAMPLERS = ("grid", "optuna")
MAX_PROPOSALS = 100
"""How often Optuna is asked for a point that has not been tried yet."""


class Sampler(Protocol):
    """Proposes points one after the other; for the same scores it proposes the same points."""

    count: int
    """maximum number of proposed trials"""

    def ask(self) -> Point:
        """Return the next point."""

    def tell(self, accuracy: float | None) -> None:
        """Receive the score of the last point, higher is better; None if its trial failed."""


def sampler(name: str, space: Space, trials: int, default: Point, seed: int) -> Sampler:
    """Return the sampler of this name for at most ``trials`` trials; ``default`` comes first if the space contains it.

    Raises UsageError if the name is unknown or the sampler is not installed.
    """
    if name not in SAMPLERS:
        raise UsageError(f"unknown sampler '{name}'", closest(name, SAMPLERS))
    if trials < 1:
        raise UsageError(f"--trials must be at least 1, got {trials}", "--trials 20")
    return (Grid if name == "grid" else Optuna)(space, trials, default, seed)


class Grid:
    """The first ``trials`` points of a finite space: the default point, then the others in random order.

    A longer search begins with the trials of a shorter one.
    """

    def __init__(self, space: Space, trials: int, default: Point, seed: int) -> None:
        points = space.points()
        first = [point for point in points if point == default]
        remaining = [point for point in points if point != default]
        order = rng.generator(seed, "tune").permutation(len(remaining))
        self.points = [*first, *(remaining[place] for place in order)][:trials]
        self.count = len(self.points)
        self._remaining = iter(self.points)

    def ask(self) -> Point:
        """Return the next point."""
        return next(self._remaining)

    def tell(self, accuracy: float | None) -> None:
        """Ignore the score."""


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
