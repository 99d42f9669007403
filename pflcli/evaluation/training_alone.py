"""Gains over what clients reach alone: the better of the methods `alone` and `local` by validation samples.

Taking part in rounds is worth it only for a gain over training alone, not over a global model alone. Where both methods
were run, the one with the higher mean score on validation samples counts; where a score is unknown, as with
``--refit``, it is the one over which a method gains less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core import scores
from pflcli.core.metrics import catalogue
from pflcli.evaluation.metrics import gains
from pflcli.evaluation.presentation.conclusion import ALONE, is_compared, set_intervals
from pflcli.evaluation.summary import ScoredPredictions, estimate_gain


def add_gains(
    rows: Sequence[dict[str, Any]],
    groups: Mapping[str, Sequence[ScoredPredictions]],
    identities: Mapping[str, Mapping[int, NDArray[np.str_]]],
    baseline: str | None,
    level: float,
) -> None:
    """Add ``over_alone`` to the rows of methods and of the baseline: the ``label`` of training alone, gain, interval.

    Nothing is added without such a method, or if it is the baseline. A gain that must be shown over two rows needs no
    further correction: intervals have the level of those of gains over the baseline.
    """
    chosen, first = choose(groups), next(iter(groups.values()))[0]
    if not chosen or baseline in chosen:
        return
    seeds = {item.seed for item in groups[chosen[0]]}
    complete = {label: items for label, items in groups.items() if {item.seed for item in items} == seeds}
    shared = gains.share_variance({label: _mean_scores(items) for label, items in complete.items()})
    confidence = 1 - (1 - level) / max(1, sum(is_compared(row, baseline) for row in rows))
    fraction = catalogue.METRICS[first.metric_names[0]].unit == "fraction"
    for row in rows:
        label = row["label"]
        if label in chosen or (row.get("reference") and label != baseline):
            continue
        found = dict[str, dict[str, Any]]()
        for other in chosen:
            variance = None if shared is None else shared.of_difference(label, other)
            record = _estimate(groups[label], groups[other], identities[label], variance)
            if record is not None:
                found[other] = {"label": other, **record}
        if len(found) == len(chosen) > 0:
            row["over_alone"] = min(found.values(), key=lambda record: record["value"])
            set_intervals(row["over_alone"], confidence, is_fraction=fraction)


def choose(groups: Mapping[str, Sequence[ScoredPredictions]]) -> list[str]:
    """Return the label of the method without the others with the best mean score on validation samples.

    These are the labels of all such methods if a score is unknown, and none if there is no such method.
    """
    labels = [label for label, items in groups.items() if items[0].method in ALONE]
    means = {label: float(np.mean([item.validation for item in groups[label]])) for label in labels}
    if len(labels) < 2 or any(map(math.isnan, means.values())):
        return labels
    metric = catalogue.METRICS[groups[labels[0]][0].metric_names[0]]
    return [max(labels, key=lambda label: metric.rank(means[label]))]


def _mean_scores(items: Sequence[ScoredPredictions]) -> list[float]:
    """Return the mean score of each run, in the order of seeds."""
    known = [(item, ~np.isnan(item.score) & (item.n > 0)) for item in sorted(items, key=lambda item: item.seed)]
    return [scores.weighted_mean(item.score[use], item.n[use]) if use.any() else math.nan for item, use in known]


def _estimate(
    items: Sequence[ScoredPredictions],
    others: Sequence[ScoredPredictions],
    identities: Mapping[int, NDArray[np.str_]],
    variance: float | None,
) -> dict[str, Any] | None:
    """Estimate the mean gain of one method over another, paired by client; None without the same seeds and samples."""
    by_seed = {item.seed: item for item in others}
    if {item.seed for item in items} != {*by_seed}:
        return None
    paired = [replace(item, baseline=by_seed[item.seed].score) for item in items]
    same = all(np.array_equal(item.samples, by_seed[item.seed].samples) for item in items)
    if not same or any(np.isnan(item.gain).all() for item in paired):
        return None
    found = estimate_gain(paired, others[0].label, identities, variance)
    return None if found is None else {"value": found[0].mean, **found[1]}
