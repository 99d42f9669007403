"""The catalogue of metrics: one entry each with unit, weighting and heading, used by files and tables.

A metric of predictions only needs an entry with its formula. Other metrics (costs, gains, times) are computed elsewhere
in ``pflcli/evaluation/`` and take unit, weighting and heading from here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core import scores
from pflcli.core.errors import UsageError, closest
from pflcli.evaluation.metrics import RANKING, classification

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
    task: str = "classes"
    """the kind of labels for which it is defined"""

    @property
    def ranks(self) -> bool:
        """Whether ``--metric`` accepts it."""
        return self.name in RANKING

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


def _parts(name: str, unit: str, **form: Any) -> list[Metric]:
    """Return the metrics that accompany a ranking metric, such as its unweighted mean and its worst client."""
    lower = form["lower_is_better"]
    parts: list[tuple[str, str, str, int, OverClients | None]] = [
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
        for part, weighting, heading, gives_way, over in parts
    ]


def _ranking(
    name: str,
    heading: str,
    *,
    unit: str = "fraction",
    percent: bool = True,
    lower_is_better: bool = False,
    task: str = "classes",
    **form: Any,
) -> list[Metric]:
    """Return a metric that is computed only if ``--metric`` names it, and the metrics that accompany it."""
    shape: dict[str, Any] = {
        "percent": percent,
        "lower_is_better": lower_is_better,
        "digits": 1 if percent else 3,
        "task": task,
    }
    first = Metric(
        name, unit, BY_SAMPLES, heading, gives_way=145, over=scores.weighted_mean, optional=True, by_name=True,
        **shape, **form,
    )  # fmt: skip
    return [first, *_parts(name, unit, **shape)]


BY_SAMPLES, ALIKE, DECILE = "clients by samples", "clients alike", "(m/10)-th worst client"
_RUN, _REACHED = "total of a run, all links", "seeds that reached the target"
_MODELS = "models there and back, a client"

_ENTRIES = (
    Metric(
        "accuracy", "fraction", BY_SAMPLES, "accuracy", percent=True, compared=1, sweep=BY_SAMPLES,
        per_sample=scores.correct, over=scores.weighted_mean,
    ),
    Metric(
        "accuracy_mean", "fraction", ALIKE, "plain mean", percent=True, compared=1, gives_way=110, sweep=ALIKE,
        score="accuracy", over=scores.mean,
    ),
    Metric(
        "bottom_decile", "fraction", DECILE, "bottom decile", percent=True, compared=1, gives_way=200, sweep=DECILE,
        score="accuracy", over=scores.lowest_decile,
    ),
    Metric("accuracy_seen", "fraction", BY_SAMPLES, "seen", percent=True, compared=2, gives_way=160, score="accuracy"),
    Metric(
        "accuracy_unseen", "fraction", BY_SAMPLES, "unseen", percent=True, compared=2, gives_way=180, score="accuracy",
        sweep="clients that took no part in training, by samples",
    ),
    Metric("bottom_decile_seen", "fraction", DECILE),
    Metric(
        "bottom_decile_unseen", "fraction", DECILE, sweep="(m/10)-th worst client that took no part in training"
    ),
    Metric(
        "worst", "fraction", "worst client", "worst", percent=True, compared=1, gives_way=130, sweep="worst client",
        score="accuracy", over=scores.lowest,
    ),
    Metric(
        "accuracy_std", "fraction", ALIKE, "std", percent=True, compared=None, gives_way=10,
        score="accuracy", over=scores.deviation,
    ),
    Metric(
        "macro_precision", "fraction", "classes alike, samples pooled", "macro prec.", percent=True, gives_way=70,
        formula=scores.macro_precision,
    ),
    Metric(
        "macro_precision_mean", "fraction", "classes alike, clients alike", "plain macro prec.", percent=True,
        gives_way=30, score="macro_precision", over=scores.mean,
    ),
    Metric(
        "calibration_error", "fraction", "samples pooled, 15 bins", "ECE", percent=True, compared=None, gives_way=20,
        formula=scores.calibration_error,
    ),
    Metric(
        "log_loss", "nats", "samples pooled", "log-loss", gives_way=145, per_sample=scores.log_loss, by_name=True,
        lower_is_better=True, digits=3,
    ),
    *_parts("log_loss", "nats", percent=False, lower_is_better=True, digits=3),
    *_ranking("auroc", "AUROC", formula=classification.auroc, needs="samples of two classes"),
    *_ranking(
        "average_precision", "avg. precision", binary_formula=classification.average_precision,
        needs="samples of two classes",
    ),
    *_ranking("f1", "F1", formula=classification.f1, needs="samples of two classes"),
    *_ranking(
        "balanced_accuracy", "balanced acc.", formula=classification.balanced_accuracy,
        needs="samples of two classes",
    ),
    *_ranking(
        "sensitivity", "sensitivity", binary_formula=classification.sensitivity, needs="samples of the positive class",
        two_classes=True,
    ),
    *_ranking(
        "specificity", "specificity", binary_formula=classification.specificity, needs="samples of the negative class",
        two_classes=True,
    ),
    *_ranking(
        "brier_score", "Brier score", per_sample=classification.brier_score, percent=False, lower_is_better=True
    ),
    Metric("train_accuracy", "fraction", BY_SAMPLES),
    Metric("train_accuracy_seen", "fraction", BY_SAMPLES),
    Metric("train_accuracy_unseen", "fraction", BY_SAMPLES),
    Metric("last_rounds_accuracy", "fraction", "clients by samples, mean over the last {} rounds"),
    Metric("validation_accuracy", "fraction", "clients by validation samples", sweep="clients by validation samples"),
    Metric("gain", "fraction", BY_SAMPLES, "gain", percent=True, compared=2),
    Metric("better_off", "fraction", ALIKE, "better off (chance)", percent=True, compared=2, gives_way=190),
    Metric("worse_off", "fraction", ALIKE, "worse off (chance)", percent=True, compared=2, gives_way=150),
    Metric("bytes_up", "bytes", "total of a run"),
    Metric("bytes_down", "bytes", "total of a run"),
    Metric("bytes_peer", "bytes", "total of a run"),
    Metric("megabytes", "MB", _RUN, "MB sent", gives_way=140),
    Metric("megabytes_per_client", "MB", "mean over clients of a run", "MB per client", gives_way=60),
    Metric("exchanges", _MODELS, _RUN),
    Metric("seconds", "seconds", "a run, with the artifacts it needs", "seconds", gives_way=120),
    Metric(
        "processor_seconds", "seconds", "a run and its worker processes, with the artifacts", "CPU seconds",
        gives_way=50,
    ),
    Metric("reported_round", "round", "seeds", "best round", gives_way=40),
    Metric("rounds_to_target", "rounds", _REACHED, "rounds to {target}", gives_way=170),
    Metric("seconds_to_target", "seconds", _REACHED, "seconds to {target}", gives_way=100),
    Metric(
        "simulated_seconds", "seconds",
        "simulated: the mean client of each round, all at once, links of {} Mbit/s up and down",
        "seconds simulated at {link} Mbit/s",
    ),
    Metric(
        "simulated_seconds_to_target", "seconds",
        "simulated: the mean client of each round, all at once, links of {} Mbit/s up and down",
        "seconds simulated to {target}",
    ),
    Metric("megabytes_to_target", "MB", _REACHED, "MB to {target}", gives_way=90),
    Metric("exchanges_to_target", _MODELS, _REACHED, "models to {target}", gives_way=80),
)  # fmt: skip

METRICS = {entry.name: entry for entry in _ENTRIES}
"""All metrics by name, in the order of the columns of an evaluation's table."""
DEFAULT = ("accuracy",)
"""The metrics that rank methods without ``--metric``."""


def parse_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the metrics that ``--metric`` names, each once; raises UsageError if one cannot rank methods."""
    typed = tuple(dict.fromkeys(name.strip().lower().replace("-", "_") for name in names if name.strip()))
    if not typed:
        raise UsageError("--metric names no metric", "--metric auroc")
    for name in typed:
        if name not in RANKING:
            raise UsageError(f"unknown metric '{name}'", closest(name, RANKING))
    return typed


def require_task(names: Iterable[str], kind: str, proposed: str) -> None:
    """Raise UsageError if one of the metrics is not defined for labels of this kind; ``proposed`` is one that is."""
    for name in names:
        if METRICS[name].task != kind:
            raise UsageError(
                f"{name} is a metric of {METRICS[name].task}, and labels are {kind}", f"metric={proposed!r}"
            )


def require_classes(names: Iterable[str], classes: int) -> None:
    """Raise UsageError if one of the metrics is undefined for this number of classes."""
    for name in names:
        if METRICS[name].two_classes and classes != 2:
            raise UsageError(
                f"{name} is defined for two classes, and there are {classes}",
                "--metric balanced_accuracy is the mean sensitivity over classes",
            )


def positive_class(name: str | None, classes: Sequence[str]) -> int:
    """Return the index of the positive one of two ``classes``: that of ``name``, or 1 without a name.

    Raises UsageError for an unknown class, or a ``name`` if there are not two classes.
    """
    if name is None:
        return 1
    if len(classes) != 2:
        raise UsageError(f"--positive is for two classes, and there are {len(classes)}", "leave out --positive")
    if name not in classes:
        raise UsageError(
            f"unknown class '{name}' for --positive", closest(name, classes), f"the classes are {' and '.join(classes)}"
        )
    return list(classes).index(name)


def part(metric: str, name: str) -> str:
    """Return the key of the ``mean``, ``bottom_decile``, ``worst``, ``seen`` or ``unseen`` of a ranking metric."""
    longer = f"{metric}_{name}"
    return longer if longer in METRICS else name


def columns(kind: str, metrics: Sequence[str] = DEFAULT) -> list[str]:
    """Return the columns of the table of an ``evaluation`` or a ``comparison``, in order.

    They include ``metrics``, the metrics of ``--metric``; the columns of the first of these come first.
    """
    first = metrics[0]
    ranking = {*RANKING} - {first}
    entries = [
        metric
        for metric in METRICS.values()
        if metric.heading and metric.score not in ranking and (metric.name in metrics or not metric.by_name)
    ]
    if kind == "comparison":
        other = {name: 3 for name in ranking}
        entries = [metric for metric in entries if metric.compared is not None or metric.name in metrics]
        entries.sort(key=lambda metric: other.get(metric.name, metric.compared or 0))
    entries.sort(key=lambda metric: first not in (metric.name, metric.score))
    return [metric.name for metric in entries]


def dispensable(metrics: Sequence[str] = DEFAULT) -> list[str]:
    """Return the columns that a table may leave out to fit the terminal, the first to go first."""
    entries = [metric for metric in METRICS.values() if metric.name != metrics[0] and metric.gives_way is not None]
    return [metric.name for metric in sorted(entries, key=lambda metric: metric.gives_way or 0)]


def client_metrics(metrics: Sequence[str] = DEFAULT) -> list[Metric]:
    """Return the metrics per client in the order of ``clients.csv``: means over samples, others, then ``metrics``."""
    entries = [metric for metric in METRICS.values() if metric.is_per_client and _is_computed(metric, metrics)]
    return sorted(entries, key=lambda metric: (metric.optional, not metric.optional and metric.per_sample is None))


def prediction_metrics(metrics: Sequence[str] = DEFAULT) -> list[Metric]:
    """Return the metrics that are computed from predictions, per client and over all clients."""
    entries = [m for m in METRICS.values() if m.is_per_client or (m.score and m.over is not None)]
    return [metric for metric in entries if _is_computed(metric, metrics)]


def _is_computed(metric: Metric, metrics: Sequence[str]) -> bool:
    if metric.task != METRICS[metrics[0]].task:
        return False
    return not metric.optional or metric.name in metrics or metric.score in metrics


def describe_sweep(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the unit and weighting of the metrics of a sweep among ``names``."""
    entries = [METRICS[name] for name in names if name in METRICS and METRICS[name].sweep]
    return {metric.name: {"unit": metric.unit, "weighting": metric.sweep} for metric in entries}
