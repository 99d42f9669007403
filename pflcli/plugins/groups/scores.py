"""Scores by group of samples, ``--group-scores``: a group has one value of a kept column, or of a feature.

Each group is scored as all samples are: its gains are those of clients on their samples of the group. No prediction
depends on groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import client_blocks, codebook, kept_columns
from pflcli.artifacts.codebook import Codebook, Column
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.kinds.partition import Partition
from pflcli.artifacts.kinds.predictions import LaterClients, SplitPredictions
from pflcli.artifacts.reader import Artifact, require_ancestor
from pflcli.core import scores
from pflcli.core.datasets import SPLITS
from pflcli.core.errors import GoneError, InputError, UsageError, closest
from pflcli.core.metrics import catalogue
from pflcli.core.wording import listed
from pflcli.evaluation import scoring, summary
from pflcli.evaluation.metrics import gains
from pflcli.evaluation.presentation import conclusion
from pflcli.evaluation.summary import Scored

MISSING = "missing"
"""The group of samples without a value."""
MAX_GROUPS = 20
MIN_SAMPLES = 30
"""Samples per seed from which on a group counts in the largest difference between groups."""
_SCORES = ("accuracy", "calibration_error", "gain")
"""Metrics of a group, beside the one that ranks methods."""
_INTERVAL = ("interval", "p", "standard_error", "degrees_of_freedom")

Words = NDArray[np.str_]


def parse_columns(typed: Sequence[str]) -> list[str]:
    """Return the columns that ``--group-scores`` names, each once; raises UsageError if it names none."""
    columns = list(dict.fromkeys(name.strip() for name in typed if name.strip()))
    if not columns:
        raise UsageError("--group-scores names no column", "--group-scores sex")
    return columns


def require_columns(partition: Artifact, columns: Sequence[str]) -> None:
    """Raise an error if scores cannot be grouped by one of the columns: UsageError if it is unknown, else InputError.

    It may have too many values.
    """
    samples, book = partitions.read(partition), codebook.read(partition)
    for column in columns:
        _list_groups(column, _read_words(samples, book, column, str(partition.path)))


def summarize(scored: Sequence[Scored], metrics: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """Return ``groups`` of ``metrics.json``, an entry per column.

    ``metrics`` are those of the table, whose baseline, intervals and order of methods these scores share. Raises an
    error as ``require_columns`` does, and InputError if the partition no longer exists.
    """
    answers = [predictions.read(item.artifact, metrics["split"]) for item in scored]
    return {"groups": [_summarize_column(scored, answers, metrics, column) for column in columns]}


def _summarize_column(
    scored: Sequence[Scored], answers: Sequence[SplitPredictions], metrics: Mapping[str, Any], column: str
) -> dict[str, Any]:
    known, words = dict[str, tuple[Partition, Words]](), list[Words]()
    for item, each in zip(scored, answers, strict=True):
        partition = _find_partition(item.artifact)
        if partition.manifest.fingerprint not in known:
            samples = partitions.read(partition)
            own = _read_words(samples, codebook.read(partition), column, str(partition.path))
            known[partition.manifest.fingerprint] = samples, own
        words.append(_words_of(item, each, *known[partition.manifest.fingerprint], column))
    groups = _list_groups(column, np.concatenate([*(own for _, own in known.values()), *words]))
    labels = [row["label"] for row in metrics["methods"]]
    identities = {label: summary.identify_clients([item for item in scored if item.label == label]) for label in labels}
    baseline = "fedavg" if metrics["baseline"] in (None, "global") else metrics["baseline"]
    rows, parts_of = [], dict[str, dict[str, list[Scored]]]()
    for name, word in groups.items():
        chosen = zip(scored, answers, words, strict=True)
        runs = [(item, partial(_restrict, each, own == word)) for item, each, own in chosen if (own == word).any()]
        parts = scoring.add_records(runs, baseline) if runs else []
        for label in labels:
            items = [part for part in parts if part.label == label]
            if items:
                rows.append({"group": name, **_summarize_group(label, items, identities[label])})
                parts_of.setdefault(label, {})[name] = items
    conclusion.judge_gains(rows, metrics["baseline"], scored[0].level)
    rows.sort(key=lambda row: labels.index(row["label"]))
    return {
        "column": column,
        "metric": scored[0].metric_names[0],
        "rows": rows,
        "differences": {label: _find_largest_difference(parts_of[label], identities[label]) for label in labels},
        "fewest_samples": MIN_SAMPLES,
    }


def _find_partition(artifact: Artifact) -> Artifact:
    try:
        return require_ancestor(artifact, "partition")
    except GoneError as error:
        raise InputError(f"--group-scores needs the partition: {error.message}", *error.fix) from None


def _words_of(item: Scored, answers: SplitPredictions, samples: Partition, words: Words, column: str) -> Words:
    """Return the word (n,) of each scored sample, empty if it is missing; ``words`` are those of the partition."""
    later = predictions.read_later_clients(item.artifact)
    known, y = samples.sample, samples.y
    if later is not None:
        added = _read_later_words(later, samples, codebook.read(item.artifact), column)
        known, y = np.concatenate([known, later.sample]), np.concatenate([y, later.y])
        words = np.concatenate([words, added])
    order = np.argsort(known)
    at = order[np.searchsorted(known, answers.sample, sorter=order).clip(max=len(known) - 1)]
    if not (np.array_equal(known[at], answers.sample) and np.array_equal(y[at], answers.y)):
        raise InputError(f"{item.artifact.path} has predictions of samples that are not in its partition")
    found: Words = words[at]
    return found


def _read_later_words(later: LaterClients, samples: Partition, book: Codebook, column: str) -> Words:
    """Return the words (n,) of the samples of clients that joined after the rounds."""
    if column in samples.kept:
        return kept_columns.join(({column: samples.kept[column][:0]}, 0), (later.kept, len(later.y)))[column]
    names = book.clients[len(samples.names) :]
    clients = replace(samples, x=later.x, y=later.y, sample=later.sample, offsets=later.offsets, names=[*names])
    return _read_words(clients, book, column, "")


def _read_words(samples: Partition, book: Codebook, column: str, where: str) -> Words:
    """Return the words (n,) of a kept column, or of a feature in its own unit; UsageError if there is none."""
    if column in samples.kept:
        return np.asarray(samples.kept[column])
    columns = book.columns or tuple(Column(name) for name in book.features)
    first = 0
    for each in columns:
        if each.name == column and not each.size and samples.x.ndim == 2:
            return _read_feature(samples, book, each, first)
        first += len(each.features) + each.gaps
    known = [*samples.kept, *(each.name for each in columns if not each.size)]
    raise UsageError(
        f"{where} has no column '{column}' by which to group scores",
        closest(column, known) if known else "",
        f"kept: {listed([*samples.kept], 10)}" if samples.kept else "pfl import DATA --keep COL keeps a column",
    )


def _read_feature(samples: Partition, book: Codebook, column: Column, first: int) -> Words:
    """Return the words (n,) of a feature, the ``first`` of its column, without standardization."""
    x = np.array(samples.x, np.float64)[:, first : first + len(column.features) + column.gaps]
    if column.words:
        hot = x[:, : len(column.words)]
        return np.where(hot.any(axis=1), np.asarray(column.words)[hot.argmax(axis=1)], "")
    values = x[:, 0]
    scale_of = {scale.client: scale for scale in book.scales}
    ends = samples.offsets[:: len(SPLITS)]
    for client, name in enumerate(samples.names):
        scale, own = scale_of.get(name, book), slice(ends[client], ends[client + 1])
        if scale.mean:
            values[own] = values[own] * scale.sd[first] + scale.mean[first]
    # A standardized value is stored with about seven digits, so that 0 may have become 5e-8.
    digits = 5 - int(np.floor(np.log10(np.abs(values).max(initial=0) or 1)))
    words = np.asarray([f"{value:.6g}" for value in np.round(values, digits) + 0.0], np.str_)
    return np.where(x[:, -1] > 0.5, "", words) if column.gaps else words


def _list_groups(column: str, words: Words) -> dict[str, str]:
    """Return the words of the groups by name, numbers by value, and samples without a word last."""
    distinct = np.unique(words).tolist()
    if len(distinct) > MAX_GROUPS:
        raise InputError(
            f"'{column}' has {len(distinct)} different values, and scores are of at most {MAX_GROUPS} groups",
            "make a column of bins, such as 0-39, 40-59 and 60+, and import it: pfl import DATA --keep COL -o DIR",
        )
    names = {word: word for word in sorted(filter(None, distinct), key=_sort_key)}
    return names | ({f"({MISSING})" if MISSING in names else MISSING: ""} if "" in distinct else {})


def _sort_key(word: str) -> tuple[float, str]:
    try:
        return float(word), word
    except ValueError:
        return float("inf"), word


def _restrict(answers: SplitPredictions, chosen: NDArray[np.bool_]) -> SplitPredictions:
    """Return the predictions for the samples ``chosen`` (n,); clients without such samples stay, with none."""
    counts = np.add.reduceat(np.append(chosen, False).astype(np.int64), answers.offsets[:-1])
    counts[np.diff(answers.offsets) == 0] = 0
    return SplitPredictions(
        {name: values[chosen] for name, values in answers.parts.items()},
        answers.y[chosen],
        answers.sample[chosen],
        client_blocks.offsets(counts),
    )


def _summarize_group(label: str, items: Sequence[Scored], identities: Mapping[int, NDArray[np.str_]]) -> dict[str, Any]:
    """Return the scores of a method in one group, over seeds."""
    row = summary.summarize_scores(label, items, identities)
    holders = {name for item in items for name in identities[item.seed][item.n > 0].tolist()}
    if len(holders) == 1 and "gain" in row["metrics"]:  # also without an interval of length 0 where all are ties
        row["metrics"]["gain"] = {key: value for key, value in row["metrics"]["gain"].items() if key not in _INTERVAL}
    names = dict.fromkeys((items[0].metric_names[0], *_SCORES))
    return {
        "label": label,
        "seeds": row["seeds"],
        **({"reference": True} if row.get("reference") else {}),
        "samples": float(np.mean([item.n.sum() for item in items])),
        "clients": float(np.mean([(item.n > 0).sum() for item in items])),
        **({"one_client": True} if len(holders) == 1 else {}),
        "metrics": {name: row["metrics"][name] for name in names if name in row["metrics"]},
    }


def _find_largest_difference(
    parts: Mapping[str, Sequence[Scored]], identities: Mapping[int, NDArray[np.str_]]
) -> dict[str, Any] | None:
    """Return the largest difference of a method's scores between two groups, with its interval; None for one group.

    ``parts`` has the runs by group, one per seed; only groups with enough samples under every seed count. The interval
    is Bonferroni's over all pairs of groups, since the pair was chosen by its scores.
    """
    item = next(iter(parts.values()))[0]
    metric, seeds = catalogue.METRICS[item.metric_names[0]], max(map(len, parts.values()))
    values = {
        group: metric.sign * float(np.mean([_mean_score(each) for each in items]))
        for group, items in parts.items()
        if len(items) == seeds and np.mean([each.n.sum() for each in items]) >= MIN_SAMPLES
    }
    values = {group: score for group, score in values.items() if not np.isnan(score)}
    if len(values) < 2:
        return None
    best, worst = max(values, key=lambda group: values[group]), min(values, key=lambda group: values[group])
    pairs = [*zip(parts[best], parts[worst], strict=True)]
    changes = [_spread_difference(*pair) for pair in pairs]
    estimate = gains.mean_gain(
        [metric.sign * change for change, _, _ in changes],
        [weight for _, weight, _ in changes],
        [identities[one.seed][chosen] for (one, _), (_, _, chosen) in zip(pairs, changes, strict=True)],
    )
    found = {"value": values[best] - values[worst], "best": best, "worst": worst}
    if estimate is None:
        return found
    count = len(values) * (len(values) - 1) / 2
    low, high = estimate.interval_at(1 - (1 - item.level) / count)
    bound = 1.0 if metric.unit == "fraction" else np.inf
    return found | {"interval": [max(low, -bound), min(high, bound)]}


def _mean_score(item: Scored) -> float:
    return scores.weighted_mean(item.score, item.n)


def _spread_difference(one: Scored, other: Scored) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[Any]]:
    """Return the difference of two mean scores as a weighted mean over clients, with weights, and these clients (m,).

    A client's weight is the mean of its shares of both groups, and its contribution to the difference is that of the
    linearization, so that the variance of the mean is the cluster-robust one of the difference.
    """
    shares, deviations, means = [], [], []
    for item in (one, other):
        weight = np.where(np.isnan(item.score), 0.0, item.n)
        mean = _mean_score(item)
        shares.append(weight / weight.sum())
        deviations.append(shares[-1] * np.where(np.isnan(item.score), 0.0, item.score - mean))
        means.append(mean)
    weight = (shares[0] + shares[1]) / 2
    chosen = weight > 0
    change = means[0] - means[1] + ((deviations[0] - deviations[1])[chosen] / weight[chosen])
    return change, weight[chosen], chosen
