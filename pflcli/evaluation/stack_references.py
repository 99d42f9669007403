"""References for a stack: the best single method that it pools, and an upper bound on choosing a method per client.

Without a stack one would choose the best single method on validation samples. The upper bound gives each client the
method that is best on its own test samples. No rule that chooses one method per client can exceed it; a stack can,
because it combines predictions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts.kinds import predictions
from pflcli.core import scores
from pflcli.core.metrics import catalogue
from pflcli.core.metrics.metric import Metric
from pflcli.evaluation import scoring
from pflcli.evaluation.summary import Scored

_MIN_CLIENTS, _MIN_SAMPLES = 5, 200
"""Exponents fitted on fewer clients or validation samples are unreliable and get a warning."""


def score_references(scored: Sequence[Scored], pools: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
    """Return the references of each stack: ``pool``, ``best_by_validation`` (by seed), ``single`` and ``bound``.

    ``pools`` maps the label of a stack to those of the pooled methods. ``single`` and ``bound`` have the ranking metric
    and its bottom decile on the scored split, in the form of ``metrics.json``, over the seeds under which all pooled
    methods are scored.
    """
    by_run = {(item.label, item.seed): item for item in scored}
    result = {}
    for label, names in pools.items():
        seeds = [item.seed for item in scored if item.label == label]
        complete = [seed for seed in seeds if all((name, seed) in by_run for name in names)]
        runs = {seed: [by_run[name, seed] for name in names] for seed in complete}
        if not runs:
            continue
        singles = {seed: max(items, key=_validation_score) for seed, items in runs.items()}
        alone = [_score_clients(item, item.score) for item in singles.values()]
        best = [_score_clients(items[0], choose_best_scores(items)) for items in runs.values()]
        result[label] = {
            "pool": list(names),
            "best_by_validation": {str(seed): single.label for seed, single in singles.items()},
            "single": _record_scores(alone, scored[0]),
            "bound": _record_scores(best, scored[0]),
        }
    return result


def find_warnings(scored: Sequence[Scored], pools: Mapping[str, Sequence[str]]) -> list[str]:
    """Return warnings that name the stacks whose exponents were fitted on too few clients or validation samples."""
    labels: dict[str, dict[str, None]] = {}
    for item in scored:
        if item.label in pools:
            text = warn_few_samples(predictions.read(item.artifact, "validation").offsets)
            labels.setdefault(text, {})[item.label] = None
    return [f"{', '.join(names)}: {text}" for text, names in labels.items() if text]


def warn_few_samples(offsets: NDArray[np.int64]) -> str:
    """Return a warning if there are few validation samples or clients, else an empty string.

    Client i has the validation samples ``offsets[i]`` to ``offsets[i + 1]``.
    """
    clients, samples = int((np.diff(offsets) > 0).sum()), int(offsets[-1])
    if clients >= _MIN_CLIENTS and samples >= _MIN_SAMPLES:
        return ""
    return (
        f"the exponents are learned on {samples} validation samples of {clients} clients; under {_MIN_CLIENTS} "
        f"clients or {_MIN_SAMPLES} samples the best single method is often the better choice"
    )


def choose_best_scores(items: Sequence[Scored]) -> NDArray[np.float64]:
    """Return each client's best score among those of ``items``, (m,); nan if it is undefined for all."""
    sign = _get_metric(items[0]).sign
    best: NDArray[np.float64] = sign * np.fmax.reduce([sign * item.score for item in items])
    return best


def _validation_score(item: Scored) -> float:
    """Return the score of a run on validation samples; higher is better."""
    split = predictions.read(item.artifact, "validation")
    return _get_metric(item).rank(scoring.score_validation(split, item.metric_names, item.labels))


def _score_clients(item: Scored, values: NDArray[np.float64]) -> dict[str, float]:
    """Return the ranking metric and its bottom decile for the scores (m,) of the clients of ``item``."""
    metric = _get_metric(item)
    decile = catalogue.METRICS[catalogue.part(metric.name, "bottom_decile")]
    mean = scores.weighted_mean(values, item.n)
    return {metric.name: mean, decile.name: decile.score_run({metric.name: values}, item.n, {})}


def _record_scores(values: Sequence[Mapping[str, float]], item: Scored) -> dict[str, dict[str, Any]]:
    clients = int((item.n > 0).sum()) * len(values)
    return {name: catalogue.METRICS[name].record([run[name] for run in values], clients) for name in values[0]}


def _get_metric(item: Scored) -> Metric:
    """Return the metric that methods are ranked by."""
    return catalogue.METRICS[item.metric_names[0]]
