"""What a metric is: how it is computed from predictions, over clients and over seeds, and how tables show it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core import scores
from pflcli.core.tasks import RANKING, Labels

BY_SAMPLES, ALIKE, DECILE = "clients by samples", "clients alike", "(m/10)-th worst client"
LABEL_UNIT = "unit of labels"
"""The unit of a metric that is in that of the labels, which the table then names."""

Array = NDArray[Any]

SampleFormula = Callable[..., Array]
"""Map predictions (n, C) and labels (n,) to a value per sample, (n,); the score is its mean."""
Formula = Callable[..., float]
"""Map predictions (n, C) and labels (n,) to the score of all samples; nan if it is undefined."""
BinaryFormula = Callable[..., float]
"""Like ``Formula``, with the argument ``positive``: which of two classes, 0 or 1, is the positive one."""
_CLASSES = Labels(0)
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
    per_sample: SampleFormula | None = None
    formula: Formula | None = None
    binary_formula: BinaryFormula | None = None
    """used instead of ``formula`` if the score depends on which of two classes is positive"""
    reads_task: bool = False
    """whether formulas have the argument ``task``, which knows what predictions are"""
    score: str = ""
    """the metric whose client scores it summarizes, for a metric without a formula"""
    over: OverClients | None = None
    """how client scores are summarized; None to apply the formula to the samples of all clients together"""
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
    suffix: str = ""
    """what follows a number in a sentence: the unit of labels, with a space before it"""

    @property
    def ranks(self) -> bool:
        """Whether ``--metric`` accepts it."""
        return self.name in RANKING

    @property
    def title(self) -> str:
        """The heading, and the unit of labels in brackets."""
        return f"{self.heading} ({self.suffix.strip()})" if self.suffix else self.heading

    def in_unit(self, unit: str, size: float) -> Metric:
        """Return the metric with this unit of labels, if it is in it, and four digits of numbers of about this size."""
        if self.unit != LABEL_UNIT:
            return self
        digits = min(max(3 - math.floor(math.log10(size)), 0), 6) if 0 < size < math.inf else self.digits
        return replace(self, digits=digits, suffix=f" {unit}" if unit else "")

    @property
    def sign(self) -> int:
        """The factor, 1 or -1, by which to multiply a score so that higher is better."""
        return -1 if self.lower_is_better else 1

    @property
    def scale(self) -> int:
        """The factor by which tables and charts multiply a score: 100 for percentages."""
        return 100 if self.percent else 1

    def rank(self, score: float) -> float:
        """Return a sort key that is higher for a better score; minus infinity for nan."""
        return -math.inf if math.isnan(score) else self.sign * score

    @property
    def is_per_client(self) -> bool:
        """Whether it is computed per client."""
        return any(formula is not None for formula in (self.per_sample, self.formula, self.binary_formula))

    @property
    def is_client_mean(self) -> bool:
        """Whether it is a mean over clients, weighted by samples or not."""
        is_weighted = self.is_per_client and self.weighting == BY_SAMPLES
        return is_weighted or (bool(self.score) and self.over in (scores.mean, scores.weighted_mean))

    def score_clients(
        self, p: Array, y: Array, offsets: NDArray[np.int64], labels: Labels = _CLASSES
    ) -> NDArray[np.float64]:
        """Return the score of each client, (m,); nan without samples.

        ``p`` (n, C) are predictions and ``y`` (n,) labels, grouped by client at ``offsets`` (m + 1,). ``labels`` says
        what these are.
        """
        score = self._formula(labels)
        if self.per_sample is not None:
            return scores.per_client(score(p, y), offsets)
        return np.asarray([score(p[a:b], y[a:b]) for a, b in itertools.pairwise(offsets)], np.float64)

    def _formula(self, labels: Labels) -> Callable[..., Any]:
        """Return the formula, per sample if there is such a one, for these labels."""
        if self.binary_formula is not None:
            return partial(self.binary_formula, positive=labels.positive)
        formula = self.per_sample or self.formula
        assert formula is not None
        return partial(formula, task=labels.task()) if self.reads_task else formula

    def score_run(self, clients: Mapping[str, Array], n: Array, pooled: Mapping[str, float]) -> float:
        """Return the value of one run.

        ``clients`` has the client scores (m,) by metric, ``n`` (m,) their numbers of samples, and ``pooled`` the values
        of metrics of the samples of all clients together.
        """
        if self.over is None:
            return pooled[self.name]
        values = clients[self.score or self.name]
        return math.nan if np.isnan(values).all() else self.over(values, n)

    def score_answers(self, p: Array, y: Array, offsets: NDArray[np.int64], labels: Labels = _CLASSES) -> float:
        """Return the value of one run from its predictions; ``score_clients`` documents the arguments."""
        if self.over is None:
            return float(np.mean(self._formula(labels)(p, y)))
        return self.score_run({self.name: self.score_clients(p, y, offsets, labels)}, np.diff(offsets), {})

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


def parts(name: str, unit: str, **form: Any) -> list[Metric]:
    """Return the metrics that accompany a ranking metric, such as its unweighted mean and its worst client."""
    lower = form["lower_is_better"]
    kinds: list[tuple[str, str, str, int, OverClients | None]] = [
        ("mean", ALIKE, "plain mean", 110, scores.mean),
        ("bottom_decile", DECILE, "bottom decile", 200, scores.highest_decile if lower else scores.lowest_decile),
        ("seen", BY_SAMPLES, "seen", 160, None),
        ("unseen", BY_SAMPLES, "unseen", 180, None),
        ("worst", "worst client", "worst", 130, scores.highest if lower else scores.lowest),
    ]
    return [
        Metric(
            f"{name}_{part}",
            unit,
            weighting,
            heading,
            gives_way=gives_way,
            score=name,
            over=over,
            optional=True,
            **form,
        )
        for part, weighting, heading, gives_way, over in kinds
    ]


def ranking(
    name: str,
    heading: str,
    *,
    unit: str = "fraction",
    percent: bool = True,
    lower_is_better: bool = False,
    **form: Any,
) -> list[Metric]:
    """Return a metric that is computed only if ``--metric`` names it, and the metrics that accompany it."""
    shape: dict[str, Any] = {
        "percent": percent,
        "lower_is_better": lower_is_better,
        "digits": 1 if percent else 3,
    }
    first = Metric(
        name, unit, BY_SAMPLES, heading, gives_way=145, over=scores.weighted_mean, optional=True, by_name=True,
        **shape, **form,
    )  # fmt: skip
    return [first, *parts(name, unit, **shape)]
