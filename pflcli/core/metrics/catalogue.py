"""The catalogue of metrics: one entry each with unit, weighting and heading, used by files and tables.

A metric of predictions only needs an entry with its formula. Other metrics (costs, gains, times) are computed elsewhere
in ``pflcli/evaluation/`` and take unit, weighting and heading from here. Entries of other tasks than classes stand in
the files of these.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence

import numpy as np

from pflcli.core import scores, tasks
from pflcli.core.errors import UsageError, closest
from pflcli.core.metrics import classification
from pflcli.core.metrics.metric import ALIKE, BY_SAMPLES, DECILE, Metric, parts, ranking
from pflcli.core.tasks import RANKING, Labels

_RUN, _REACHED = "total of a run, all links", "seeds that reached the target"
_MODELS = "models there and back, a client"

_ENTRIES = (
    Metric(
        "accuracy", "fraction", BY_SAMPLES, "accuracy", percent=True, compared=1,
        per_sample=scores.correct, over=scores.weighted_mean,
    ),
    Metric(
        "accuracy_mean", "fraction", ALIKE, "plain mean", percent=True, compared=1, gives_way=110,
        score="accuracy", over=scores.mean,
    ),
    Metric(
        "bottom_decile", "fraction", DECILE, "bottom decile", percent=True, compared=1, gives_way=200,
        score="accuracy", over=scores.lowest_decile,
    ),
    Metric("accuracy_seen", "fraction", BY_SAMPLES, "seen", percent=True, compared=2, gives_way=160, score="accuracy"),
    Metric(
        "accuracy_unseen", "fraction", BY_SAMPLES, "unseen", percent=True, compared=2, gives_way=180, score="accuracy"
    ),
    Metric("bottom_decile_seen", "fraction", DECILE),
    Metric("bottom_decile_unseen", "fraction", DECILE),
    Metric(
        "worst", "fraction", "worst client", "worst", percent=True, compared=1, gives_way=130,
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
    *parts("log_loss", "nats", percent=False, lower_is_better=True, digits=3),
    *ranking("auroc", "AUROC", formula=classification.auroc, needs="samples of two classes"),
    *ranking(
        "average_precision", "avg. precision", binary_formula=classification.average_precision,
        needs="samples of two classes",
    ),
    *ranking("f1", "F1", formula=classification.f1, needs="samples of two classes"),
    *ranking(
        "balanced_accuracy", "balanced acc.", formula=classification.balanced_accuracy,
        needs="samples of two classes",
    ),
    *ranking(
        "sensitivity", "sensitivity", binary_formula=classification.sensitivity, needs="samples of the positive class",
        two_classes=True,
    ),
    *ranking(
        "specificity", "specificity", binary_formula=classification.specificity, needs="samples of the negative class",
        two_classes=True,
    ),
    *ranking(
        "brier_score", "Brier score", per_sample=classification.brier_score, percent=False, lower_is_better=True
    ),
    Metric("train_accuracy", "fraction", BY_SAMPLES),
    Metric("train_accuracy_seen", "fraction", BY_SAMPLES),
    Metric("train_accuracy_unseen", "fraction", BY_SAMPLES),
    Metric("last_rounds_accuracy", "fraction", "clients by samples, mean over the last {} rounds"),
    Metric("validation_accuracy", "fraction", "clients by validation samples"),
    Metric("gain", "fraction", BY_SAMPLES, "gain", percent=True, compared=2),
    Metric("gain_relative", "fraction", BY_SAMPLES, "relative gain", percent=True, compared=2, gives_way=195),
    Metric("better_off", "fraction", ALIKE, "better off (chance)", percent=True, compared=2, gives_way=190),
    Metric("worse_off", "fraction", ALIKE, "worse off (chance)", percent=True, compared=2, gives_way=150),
    Metric("reported_round", "round", "seeds", "rounds", gives_way=125, digits=0),
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

METRICS: dict[str, Metric] = {entry.name: entry for entry in _ENTRIES}
"""All metrics by name, in the order of the columns of an evaluation's table."""


def add_entries(kind: str) -> None:
    """Add the metrics that the file of a task has."""
    found = getattr(importlib.import_module(tasks.KINDS[kind].module), "ENTRIES", ())
    METRICS.update((entry.name, entry) for entry in found)


for _kind in tasks.KINDS:
    add_entries(_kind)
DEFAULT = tasks.KINDS[tasks.CLASSES].metrics[:1]
"""The metrics that rank methods without ``--metric`` if labels are classes."""


def parse_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the metrics that ``--metric`` names, each once; raises UsageError if one cannot rank methods."""
    typed = tuple(dict.fromkeys(name.strip().lower().replace("-", "_") for name in names if name.strip()))
    if not typed:
        raise UsageError("--metric names no metric", "--metric auroc")
    for name in typed:
        if name not in RANKING:
            raise UsageError(f"unknown metric '{name}'", closest(name, RANKING))
    return typed


def require_defined(names: Iterable[str], labels: Labels) -> None:
    """Raise UsageError if one of the metrics is not defined for these labels, such as for their number of classes."""
    usual = tasks.find(labels.kind).metrics
    for name in names:
        if name not in usual:
            of = " and ".join(_kinds(METRICS[name]))
            raise UsageError(f"{name} is a metric of {of}, and the task is {labels.kind}", f"use {usual[0]}")
        if METRICS[name].two_classes and labels.outputs != 2:
            raise UsageError(
                f"{name} is defined for two classes, and there are {labels.outputs}",
                "--metric balanced_accuracy is the mean sensitivity over classes",
            )
        if METRICS[name].reads_task:  # the formula of no samples, as some ask the task for what it may not have
            METRICS[name].score_answers(np.zeros((0, labels.outputs)), np.zeros(0), np.zeros(2, np.int64), labels)


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
    if not {*_kinds(metric)} & {*_kinds(METRICS[metrics[0]])}:
        return False
    return not metric.optional or metric.name in metrics or metric.score in metrics


def _kinds(metric: Metric) -> list[str]:
    """Return the tasks for which a metric is defined: that of classes if none names it."""
    name = metric.score or metric.name
    return [kind for kind, place in tasks.KINDS.items() if name in place.metrics] or [tasks.CLASSES]
