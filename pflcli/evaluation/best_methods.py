"""The best method of each column of a table, and the methods that are not shown to be worse than it.

A difference from the best method, paired by client, is significant if its p-value is below 5 % (less with
``--until-decided``) after Holm's correction for the number of methods. Gains over the baseline use the same test
(``metrics/gains.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pflcli.artifacts.reader import Artifact
from pflcli.evaluation import client_identity
from pflcli.evaluation.metrics import catalogue, gains, scores
from pflcli.evaluation.metrics.catalogue import Metric

DAGGER = "†"
"""The mark of a score that is not shown to be worse than the best one of its column."""
_BOLD = "Bold: the best score of a column; only columns that are means over clients are marked."
_NOT_WORSE = (
    f"{DAGGER} not shown to be worse than the best score of the column (RISK, paired by client, Holm's correction). The"
    " test depends on how much clients differ, so a lower score can have this mark where a higher one has not."
)


@dataclass(frozen=True)
class Best:
    """The labels of the best methods of a column, several if their scores are equal, and of those not shown worse."""

    best: frozenset[str] = frozenset()
    not_worse: frozenset[str] = frozenset()


def find(artifact: Artifact, metrics: Mapping[str, Any], names: Sequence[str]) -> dict[str, Best]:
    """Return the best methods by each metric in ``names``, from the stored ``metrics`` and clients of a table.

    Nothing is marked in the columns of metrics that are not means over clients of scores in ``clients.csv``, and in
    tables of a single method. A method with other clients than the best one cannot be compared and is not marked.
    """
    tested = [name for name in names if _is_mean(catalogue.METRICS[name])]
    if len(metrics["methods"]) < 2 or not tested:
        return dict.fromkeys(names, Best())
    table = client_identity.read_client_table(artifact)
    runs = {
        label: dict(iter(table[table["method"] == label].groupby("seed")))
        for label in (row["label"] for row in metrics["methods"])
    }
    is_one_partition = client_identity.is_one_partition(artifact)
    samples = f"n_{metrics['split']}"
    found = dict.fromkeys(names, Best())
    for name in tested:
        metric = catalogue.METRICS[name]
        values = {
            row["label"]: row["metrics"][name]["value"]
            for row in metrics["methods"]
            if row["metrics"].get(name, {}).get("value") is not None and not row.get("reference")
        }
        if len(values) > 1 and (metric.score or name) in table:
            found[name] = _find_in_column(
                runs, values, metric, samples, risk=_risk(metrics), is_one_partition=is_one_partition
            )
    return found


def _risk(metrics: Mapping[str, Any]) -> float:
    """Return the significance level at which a method differs from the best one."""
    return 1 - float(metrics.get("level", gains.LEVEL))


def explain(found: Iterable[Best], metrics: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each mark that a table with these columns has."""
    columns = [*found]
    has_best, has_others = any(column.best for column in columns), any(column.not_worse for column in columns)
    return [_BOLD] * has_best + [_NOT_WORSE.replace("RISK", f"{100 * _risk(metrics):.3g} %")] * has_others


def _find_in_column(
    runs: Mapping[str, Mapping[int, pd.DataFrame]],
    values: Mapping[str, float],
    metric: Metric,
    samples: str,
    *,
    risk: float,
    is_one_partition: bool,
) -> Best:
    """Return the best methods of a column and those not shown to be worse; ``runs`` has clients by label and seed."""
    best = max(values, key=lambda label: metric.sign * values[label])
    column = metric.score or metric.name
    shared = _share_variance({label: runs[label] for label in values}, column, metric, samples)
    p: dict[str, float] = {}
    for label in values:
        differences = _pair_differences(runs[best], runs[label], column, samples)
        if label == best or differences is None:
            continue
        weights = [_weigh_clients(pair, metric, samples) for pair in differences]
        identities = [_identify_clients(pair, is_one_partition) for pair in differences]
        values_of_pairs = [pair["difference"].to_numpy(np.float64) for pair in differences]
        estimate = gains.mean_gain(
            values_of_pairs, weights, identities, None if shared is None else shared.of_difference(best, label)
        )
        p[label] = 1.0 if estimate is None else estimate.p
    equal = {best, *(label for label in p if values[label] == values[best])}
    not_worse = {label for label, value in gains.holm(p).items() if value >= risk}
    return Best(frozenset(equal), frozenset(not_worse - equal))


def _weigh_clients(table: pd.DataFrame, metric: Metric, samples: str) -> NDArray[np.float64]:
    return np.ones(len(table)) if metric.over is scores.mean else table[samples].to_numpy(np.float64)


def _share_variance(
    runs: Mapping[str, Mapping[int, pd.DataFrame]], column: str, metric: Metric, samples: str
) -> gains.SeedVariance | None:
    """Return the variance over seeds that the methods of a column share, if all have the same seeds."""
    if len({tuple(sorted(by_seed)) for by_seed in runs.values()}) != 1:
        return None
    means = {}
    for label, by_seed in runs.items():
        tables = [by_seed[seed] for seed in sorted(by_seed)]
        known = [table[(table[samples] > 0) & table[column].notna()] for table in tables]
        means[label] = [
            scores.weighted_mean(table[column].to_numpy(np.float64), _weigh_clients(table, metric, samples))
            for table in known
        ]
    return gains.share_variance(means)


def _is_mean(metric: Metric) -> bool:
    """Return whether a metric is a mean over clients, weighted by samples or not."""
    is_weighted = metric.is_per_client and metric.weighting == catalogue.BY_SAMPLES
    return is_weighted or (bool(metric.score) and metric.over in (scores.mean, scores.weighted_mean))


def _pair_differences(
    best: Mapping[int, pd.DataFrame], other: Mapping[int, pd.DataFrame], column: str, samples: str
) -> list[pd.DataFrame] | None:
    """Return one table per seed with the difference in a score between two methods for each client with both scores.

    Return None if no seed has both methods, or if their clients or numbers of samples differ.
    """
    pairs = []
    for seed in best.keys() & other.keys():
        first, second = (runs[seed].sort_values("client") for runs in (best, other))
        if not np.array_equal(first[["client", samples]].to_numpy(), second[["client", samples]].to_numpy()):
            return None
        pair = first.assign(difference=first[column].to_numpy() - second[column].to_numpy())
        pair = pair[(pair[samples] > 0) & pair["difference"].notna()]
        if len(pair):
            pairs.append(pair)
    return pairs or None


def _identify_clients(pair: pd.DataFrame, is_one_partition: bool) -> NDArray[np.str_]:
    """Return the identity of each client: its name if the data have names, else its number within a partition."""
    if "name" in pair and pair["name"].notna().all():
        return pair["name"].to_numpy(str)
    numbers = pair["client"].astype(str)
    return (numbers if is_one_partition else pair["seed"].astype(str) + "/" + numbers).to_numpy(str)
