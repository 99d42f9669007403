"""The entries of the catalogue of metrics, and the statistics that summarize scores of clients."""

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

SampleFormula = Callable[[Array, Array], Array]
"""Map probabilities (n, C) and labels (n,) to a value per sample, (n,); the score is its mean."""
Formula = Callable[[Array, Array], float]
"""Map probabilities (n, C) and labels (n,) to the score of all samples; nan if it is undefined."""
BinaryFormula = Callable[..., float]
"""Like ``Formula``, with the argument ``positive``: which of two classes, 0 or 1, is the positive one."""
OverClients = Callable[[Array, Array], float]
"""Map scores of clients (m,), nan where unknown, and their numbers of samples (m,) to one value."""


@dataclass(frozen=True)
class Metric:
    """A metric. One with a formula is also computed per client and has a column in ``clients.csv``."""

    name: str
    """the key in files"""
    unit: str
    weighting: str
    """how clients, samples or seeds are weighted; the caller fills in ``{}``"""
    heading: str = ""
    """heading of its column; a metric without one is only in ``metrics.json`` and ``table.csv``"""
    percent: bool = False
    """whether tables show the fraction as a percentage"""
    compared: int | None = 3
    """the group of columns in the table of a comparison, 1 is leftmost; None to show it in evaluations only"""
    gives_way: int | None = None
    """priority for leaving out its column on a narrow terminal: the smallest number goes first, None never"""
    sweep: str = ""
    """the weighting as stored by a sweep, if sweeps have the metric"""
    per_sample: SampleFormula | None = None
    formula: Formula | None = None
    binary_formula: BinaryFormula | None = None
    """used instead of ``formula`` if the score depends on which of two classes is positive"""
    score: str = ""
    """the metric whose client scores it summarizes, for a metric without a formula"""
    over: OverClients | None = None
    """how client scores are summarized; None to apply the formula to the samples of all clients together"""
    ranks: bool = False
    """whether ``--metric`` accepts it: methods are then ranked by it, and gains are in it"""
    optional: bool = False
    """whether it is computed only if ``--metric`` names it, or the score that it summarizes"""
    by_name: bool = False
    """whether its column is shown only if ``--metric`` names it"""
    lower_is_better: bool = False
    digits: int = 1
    """decimal places in tables"""
    needs: str = ""
    """the samples without which it is undefined for a client"""
    two_classes: bool = False
    """whether it is defined for two classes only"""

    @property
    def is_per_client(self) -> bool:
        """Whether it is computed per client."""
        return any(formula is not None for formula in (self.per_sample, self.formula, self.binary_formula))

    def score_clients(self, p: Array, y: Array, offsets: NDArray[np.int64], positive: int = 1) -> NDArray[np.float64]:
        """Return the score of each client, (m,); nan without samples.

        ``p`` (n, C) are probabilities and ``y`` (n,) labels, grouped by client at ``offsets`` (m + 1,). ``positive`` is
        the positive one of two classes.
        """
        if self.per_sample is not None:
            return scores.per_client(self.per_sample(p, y), offsets)
        score = self._formula(positive)
        return np.asarray([score(p[a:b], y[a:b]) for a, b in itertools.pairwise(offsets)], np.float64)

    def _formula(self, positive: int) -> Formula:
        """Return the formula for this positive class."""
        if self.binary_formula is not None:
            return partial(self.binary_formula, positive=positive)
        assert self.formula is not None
        return self.formula

    def score_run(self, clients: Mapping[str, Array], n: Array, p: Array, y: Array, positive: int = 1) -> float:
        """Return the value of one run.

        ``clients`` has the client scores (m,) by metric, and ``n`` (m,) their numbers of samples. ``p`` (n, C) and
        ``y`` (n,) are the probabilities and labels of all samples; ``positive`` is the positive one of two classes.
        """
        if self.over is not None:
            values = clients[self.score or self.name]
            return math.nan if np.isnan(values).all() else self.over(values, n)
        if self.per_sample is not None:
            return float(np.mean(self.per_sample(p, y)))
        return self._formula(positive)(p, y)

    def record(self, values: Iterable[float], n: int, words: str = "", **beside: Any) -> dict[str, Any]:
        """Return the entry of ``metrics.json``: the mean of ``values`` over seeds, ignoring nan.

        ``n`` is the number of clients, samples or seeds that it is based on, out of ``of`` if given; ``words`` fill in
        the weighting.
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
