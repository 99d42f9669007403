"""An entry of the catalogue of metrics, and the ways in which scores of clients become one value."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.evaluation.metrics import scores

Array = NDArray[Any]

OfSamples = Callable[[Array, Array], Array]
"""From probabilities (n, C) and labels (n,) to a value for each sample, (n,), whose mean is the score."""
OfAnswers = Callable[[Array, Array], float]
"""From probabilities (n, C) and labels (n,) to the score of all of them; nan where it is not defined."""
OfPositive = Callable[..., float]
"""As ``OfAnswers``, with the argument ``positive``: which of two classes, 0 or 1, is the positive one."""
OverClients = Callable[[Array, Array], float]
"""From the scores of clients (m,), nan where not known, and their numbers of samples (m,) to one value."""


@dataclass(frozen=True)
class Metric:
    """A metric. With ``per_sample`` or ``of_answers`` it is a score of each client too, a column of ``clients.csv``."""

    name: str
    """key in files"""
    unit: str
    weighting: str
    """how clients, samples or seeds are weighted, in words; ``{}`` stands for what only the caller knows"""
    heading: str = ""
    """heading of its column; without one, it is in ``metrics.json`` and ``table.csv`` alone"""
    percent: bool = False
    """whether tables show a fraction as per cent"""
    compared: int | None = 3
    """the group of columns in the table of a comparison, 1 leftmost; None if only an evaluation shows it"""
    gives_way: int | None = None
    """when its column is left out of a table that is wider than the terminal: smaller numbers first, None never"""
    sweep: str = ""
    """how a sweep words its weighting, if it has the metric"""
    per_sample: OfSamples | None = None
    of_answers: OfAnswers | None = None
    of_positive: OfPositive | None = None
    """in place of ``of_answers``, for a score that depends on which of two classes is positive"""
    score: str = ""
    """the metric whose scores of clients it sums up, where it is not a score of each client itself"""
    over: OverClients | None = None
    """how scores of clients become one value; None if the formula is applied to the samples of all clients together"""
    ranks: bool = False
    """whether ``--metric`` may name it: methods are then ranked by it, and gains are of it"""
    optional: bool = False
    """whether it is computed only if ``--metric`` names it, or the score that it sums up"""
    by_name: bool = False
    """whether its column is shown only if ``--metric`` names it"""
    lower_is_better: bool = False
    digits: int = 1
    """digits behind the point in tables"""
    needs: str = ""
    """the samples without which it is not defined for a client"""
    two_classes: bool = False
    """whether it is defined for two classes only"""

    @property
    def is_per_client(self) -> bool:
        """Whether it is a score of each client."""
        return any(formula is not None for formula in (self.per_sample, self.of_answers, self.of_positive))

    def by_client(self, p: Array, y: Array, offsets: NDArray[np.int64], positive: int = 1) -> NDArray[np.float64]:
        """Return the score of each client (m,), nan without samples; client i has the samples from ``offsets[i]`` on.

        ``p`` (n, C) are probabilities, ``y`` (n,) labels, ``offsets`` (m + 1,). Of two classes, ``positive`` is the
        positive one.
        """
        if self.per_sample is not None:
            return scores.per_client(self.per_sample(p, y), offsets)
        score = self._of_answers(positive)
        return np.asarray([score(p[a:b], y[a:b]) for a, b in itertools.pairwise(offsets)], np.float64)

    def _of_answers(self, positive: int) -> OfAnswers:
        """Return the score of answers with this positive class."""
        if self.of_positive is not None:
            return partial(self.of_positive, positive=positive)
        assert self.of_answers is not None
        return self.of_answers

    def of_run(self, clients: Mapping[str, Array], n: Array, p: Array, y: Array, positive: int = 1) -> float:
        """Return the value of one run.

        ``clients`` has by metric the scores of its clients (m,), which have ``n`` (m,) samples; ``p`` (n, C) and ``y``
        (n,) are probabilities and labels of all of these. Of two classes, ``positive`` is the positive one.
        """
        if self.over is not None:
            values = clients[self.score or self.name]
            return math.nan if np.isnan(values).all() else self.over(values, n)
        if self.per_sample is not None:
            return float(np.mean(self.per_sample(p, y)))
        return self._of_answers(positive)(p, y)

    def record(self, values: Iterable[float], n: int, words: str = "", **beside: Any) -> dict[str, Any]:
        """Return the entry of ``metrics.json``: the mean of ``values`` over seeds, without those that are nan.

        It describes ``n`` clients, samples or seeds; ``words`` complete the weighting. With ``of``, only ``n`` out of
        ``of`` have a value.
        """
        known = [value for value in values if not math.isnan(value)]
        return {
            "value": float(np.mean(known)) if known else math.nan,
            "unit": self.unit,
            "weighting": self.weighting.format(words),
            "n": n,
            **({"of": beside.pop("of")} if "of" in beside else {}),
            "std_over_seeds": float(np.std(known, ddof=1)) if len(known) > 1 else None,
            **beside,
        }


def mean(values: Array, n: Array) -> float:
    """Return the mean over clients with a score."""
    return float(np.nanmean(values))


def lowest_decile(values: Array, n: Array) -> float:
    """Return the (m / 10)-th lowest score."""
    return scores.bottom_decile(values)


def lowest(values: Array, n: Array) -> float:
    """Return the lowest score."""
    return float(np.nanmin(values))


def highest_decile(values: Array, n: Array) -> float:
    """Return the (m / 10)-th highest score."""
    return -scores.bottom_decile(-values)


def highest(values: Array, n: Array) -> float:
    """Return the highest score."""
    return float(np.nanmax(values))


def deviation(values: Array, n: Array) -> float:
    """Return the standard deviation over clients with a score."""
    return float(np.nanstd(values))
