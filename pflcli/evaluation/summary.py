"""Summarize the runs of a method in a row of the table: every number with its unit, its weighting and n."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.reader import Artifact
from pflcli.core import registry, rng, scores
from pflcli.core.errors import GoneError
from pflcli.core.metrics import catalogue
from pflcli.core.metrics.metric import Metric
from pflcli.core.tasks import CLASSES, Labels
from pflcli.evaluation import client_identity, convergence, round_costs
from pflcli.evaluation.metrics import fixed_clients, gains
from pflcli.evaluation.metrics.conformal import ClientSets
from pflcli.evaluation.metrics.gains import Estimate
from pflcli.evaluation.presentation.conclusion import MAX_NAMED
from pflcli.evaluation.records import Records
from pflcli.evaluation.round_costs import Link

Array = NDArray[Any]

_SPREAD = ("standard_error", "degrees_of_freedom")
_ROUNDING = 1e-6
"""Largest difference between probabilities that are computed in another order."""

STATISTICS = 7
"""Version of the statistics in a row, part of each request for a table: version 1 had bootstrap intervals, version 2
did not count methods that tie with the baseline on every client, in version 3 each method had its own variance of
seeds, in version 4 intervals were those of each gain alone, version 5 counted the costs of rounds after the best,
version 6 had no intervals for the clients themselves."""


@dataclass(frozen=True, kw_only=True)
class ScoredPredictions(Records):
    """Scored predictions of one method and seed: the records of m clients, and what is known of the run."""

    label: str
    seed: int
    metric_names: tuple[str, ...] = catalogue.DEFAULT
    """the metrics of ``--metric``; the first one ranks methods and defines gains"""
    labels: Labels = field(default=Labels(0))
    """what labels are"""
    names: Sequence[str] | None = None
    """the names of the clients (m,); None if they are unnamed"""
    class_names: Sequence[str] = ()
    method: str = ""
    learned_from: Sequence[str] = ("train",)
    """the splits that the run learned from"""
    is_transductive: bool = False
    """whether a prediction depends on other test samples of a client"""
    curve: convergence.Curve = ((), ())
    """the rounds whose validation accuracy was measured, and these accuracies"""
    validation_samples: int = 0
    """the number of validation samples; 0 if it is unknown"""
    losses: Sequence[float] = ()
    """the training loss of each round"""
    is_stopped: bool = False
    """whether a number of rounds as ``--patience`` ended its rounds"""
    is_reference: bool = False
    """whether its method stands beside the others and is not ranked"""
    validation: float = math.nan
    """the ranking metric on validation samples, of methods by which clients train alone; nan if it is unknown"""
    baseline: NDArray[np.float64] | None = None
    """the baseline's score of each client, (m,)"""
    level: float = gains.LEVEL
    """the coverage of the intervals of all gains together"""
    seed_variance: float | None = None
    """the variance over seeds of a mean gain that all methods of the comparison share; None if there is none"""
    tuned: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """what clients chose by validation samples, (m,) by name"""
    new: NDArray[np.bool_] | None = None
    """the clients that took no part in rounds, (m,)"""

    @property
    def score(self) -> NDArray[np.float64]:
        """The ranking metric of each client, (m,); nan where it is undefined."""
        return self.client[self.metric_names[0]]

    @cached_property
    def gain(self) -> NDArray[np.float64]:
        """The improvement of each client's score over the baseline, (m,), positive if better; nan where unknown."""
        if self.baseline is None:
            return np.full(len(self.n), math.nan)
        sign = catalogue.METRICS[self.metric_names[0]].sign
        return sign * self.score - sign * self.baseline  # in this form, equal scores give 0, not -0

    @property
    def repeats_baseline(self) -> bool:
        """Whether another method's predictions are those of the baseline, up to rounding."""
        return self.differs is not None and self.score is not self.baseline and bool(self.differs.max() < _ROUNDING)


@dataclass(frozen=True, kw_only=True)
class Scored(ScoredPredictions):
    """A scored predictions artifact."""

    artifact: Artifact
    sets: ClientSets | None = None
    """prediction sets, with ``--coverage``"""


class _Row(dict[str, dict[str, Any]]):
    """Metrics by name."""

    def add(self, name: str, n: int, values: Sequence[float], words: str = "", **beside: Any) -> None:
        """Add the mean of ``values``, one per seed, ignoring nan."""
        self[name] = catalogue.METRICS[name].record(values, n, words, **beside)


def summarize_method(
    label: str, items: Sequence[Scored], target: float | None = None, link: Link | None = None
) -> dict[str, Any]:
    """Return the row of one method; ``items`` has one run per seed. ``scoring.summarize`` documents the others."""
    row = summarize_scores(label, items, identify_clients(items))
    metrics = row["metrics"]
    _add_seen_and_unseen(metrics, items)
    _add_train_accuracy(metrics, items)
    _add_last_rounds(metrics, items)
    _add_costs(metrics, items)
    if target is not None:
        metrics |= round_costs.summarize_time_to_target([item.artifact for item in items], target)
    if link is not None:
        metrics |= round_costs.summarize_simulated_time([item.artifact for item in items], link, target)
    paper = items[0].artifact.manifest.summary.get("paper")
    foreign = {"foreign": True} if any(item.artifact.manifest.summary.get("foreign") for item in items) else {}
    return {**row, **foreign, **_privacy(items), **({"paper": paper} if paper else {}), "metrics": dict(metrics)}


def summarize_scores(
    label: str, items: Sequence[ScoredPredictions], identities: Mapping[int, NDArray[np.str_]]
) -> dict[str, Any]:
    """Return the part of the row of one method that follows from its predictions and those of the baseline.

    ``items`` has one run per seed, and ``identities`` an identifier of each client, (m,) by seed.
    """
    metrics = _Row()
    _add_scores(metrics, items)
    _add_gain(metrics, label, items, identities)
    stopped = any(item.is_stopped for item in items)
    rise = convergence.measure_mean_rise([item.curve for item in items], items[0].validation_samples, stopped=stopped)
    return {
        "label": label,
        "method": items[0].method,
        "seeds": [item.seed for item in items],
        "learned_from": sorted({split for item in items for split in item.learned_from}),
        **({"reference": True} if items[0].is_reference else {}),
        **({"transductive": True} if any(item.is_transductive for item in items) else {}),
        "personal": is_personal(items[0].method),
        **_find_worst_served(items, identities),
        **({} if rise is None else {"unfinished": rise}),
        "metrics": metrics,
    }


def is_personal(method: str) -> bool:
    """Return whether clients may predict with different models: False for methods with one model for all."""
    if not registry.exists("methods", method):
        return True
    facts = registry.card("methods", method).facts
    return facts["KIND"] != "server" or any(facts.get(name) for name in ("NEEDS", "PERSONAL_MODELS", "ADAPTS", "KEEPS"))


def _find_worst_served(
    items: Sequence[ScoredPredictions], identities: Mapping[int, NDArray[np.str_]]
) -> dict[str, dict[str, Any]]:
    """Return ``worst_served``, the clients with the worst mean score over their seeds; empty if no score is defined.

    It has the names of the first ``clients``, the ``count`` of all with this score, the score as ``value``, and their
    mean score under the ``baseline``. ``identities`` are those of the clients (m,) by seed.
    """
    metric = catalogue.METRICS[items[0].metric_names[0]]
    scored = [~np.isnan(item.score) & (item.n > 0) for item in items]
    who = np.concatenate([identities[item.seed][chosen] for item, chosen in zip(items, scored, strict=True)])
    if not len(who):
        return {}
    _, first, place = np.unique(who, return_index=True, return_inverse=True)

    def mean_by_client(values: Sequence[Array]) -> Array:
        joined = np.concatenate([value[chosen] for value, chosen in zip(values, scored, strict=True)])
        return np.bincount(place, weights=joined) / np.bincount(place)

    score = mean_by_client([item.score for item in items])
    worst = np.flatnonzero(np.isclose(score, (metric.sign * score).min() * metric.sign, rtol=0, atol=1e-12))
    several = len(first) > max(int(chosen.sum()) for chosen in scored)
    ends = np.cumsum([chosen.sum() for chosen in scored])
    names = []
    for position in first[worst[:MAX_NAMED]].tolist():
        number = int(np.searchsorted(ends, position, side="right"))
        client = int(np.flatnonzero(scored[number])[position - ends[number]])  # counted from the last one
        names.append(name_client(items[number], client, with_seed=several))
    facts: dict[str, Any] = {"clients": names, "count": len(worst), "value": float(score[worst[0]])}
    bases = [item.baseline for item in items if item.baseline is not None]
    if len(bases) == len(items) and math.isfinite(before := float(mean_by_client(bases)[worst].mean())):
        facts["baseline"] = before
    return {"worst_served": facts}


def name_client(item: ScoredPredictions, client: int, *, with_seed: bool = False) -> str:
    """Return the name of a client, or its number, with its seed if seeds have other clients."""
    if item.names is not None:
        return item.names[client]
    return f"client {client}" + (f" of seed {item.seed}" if with_seed else "")


def _privacy(items: Sequence[Scored]) -> dict[str, Any]:
    """Return epsilon and delta of the models that the server sent; empty unless they are the same for all seeds."""
    bounds = {
        (guarantee.get("epsilon"), guarantee.get("delta"))
        for item in items
        for guarantee in [item.artifact.manifest.summary.get("privacy", {})]
    }
    ((epsilon, delta), *others) = bounds
    return {} if others or epsilon is None else {"privacy": {"epsilon": epsilon, "delta": delta}}


def sort_key(row: Mapping[str, Any], metric: Metric) -> tuple[bool, float]:
    """Return a key that sorts rows from the best method to the worst; references follow, as they are not ranked.

    Rows without a value of the ``metric`` come last.
    """
    number = row["metrics"].get(metric.name, {}).get("value")
    return bool(row.get("reference")), -metric.rank(math.nan if number is None else float(number))


def identify_clients(items: Sequence[Scored]) -> dict[int, NDArray[np.str_]]:
    """Return an identifier of each client, (m,) by seed; the same client has the same identifier under all seeds.

    A client with a name in the data (a writer, a hospital) is identified by this name. Other clients are the same only
    in the same partition or, if it no longer exists, if all clients have the same samples.
    """
    partition = identify_partitions(items)
    return {
        item.seed: np.asarray(item.names or [f"{partition[item.seed]}/{client}" for client in range(len(item.n))])
        for item in items
    }


def identify_partitions(items: Sequence[Scored]) -> dict[int, str]:
    """Return the fingerprint of the partition of each seed or, if it no longer exists, the seed with these samples."""
    known = {}
    for item in items:
        partition = client_identity.read_partition(item.artifact)
        twin = next(other.seed for other in items if np.array_equal(other.samples, item.samples))
        known[item.seed] = f"samples of seed {twin}" if partition is None else partition.manifest.fingerprint
    return known


def _add_scores(metrics: _Row, items: Sequence[ScoredPredictions]) -> None:
    """Add the metrics that are computed from predictions."""
    count = sum(int((item.n > 0).sum()) for item in items)
    samples = sum(int(item.n.sum()) for item in items)
    pooled = [item.pool() for item in items]
    for metric in catalogue.prediction_metrics(items[0].metric_names):
        values = [metric.score_run(item.client, item.n, each) for item, each in zip(items, pooled, strict=True)]
        if metric.optional:
            known = [item.client[metric.score or metric.name] for item in items]
            metrics.add(metric.name, _count_defined(known), values, of=count)
        else:
            metrics.add(metric.name, samples if metric.over is None else count, values)


def _count_defined(values: Sequence[Array]) -> int:
    """Return the number of clients, over all seeds, for which the score is defined."""
    return sum(int((~np.isnan(each)).sum()) for each in values)


def _add_gain(
    metrics: _Row, label: str, items: Sequence[ScoredPredictions], identities: Mapping[int, NDArray[np.str_]]
) -> None:
    """Add the gain over the baseline and the shares of clients better and worse off, if the baseline is known.

    Clients for which the score is undefined are left out. References are not tested: they have no p-value and no share
    that is expected by chance.
    """
    metric, clients = catalogue.METRICS[items[0].metric_names[0]], sum(int((item.n > 0).sum()) for item in items)
    if any(item.baseline is None for item in items):
        return
    items = [item for item in items if not np.isnan(item.gain).all()]
    if not items:
        return
    tested = [~np.isnan(item.gain) for item in items]
    of: dict[str, Any] = {"of": clients} if metric.optional else {}
    gain = [item.gain[chosen] for item, chosen in zip(items, tested, strict=True)]
    weight = [item.n[chosen].astype(float) for item, chosen in zip(items, tested, strict=True)]
    count = sum(map(len, gain))
    bases = [item.baseline[chosen] for item, chosen in zip(items, tested, strict=True) if item.baseline is not None]
    beside: dict[str, Any] = {"unit": metric.unit, **of}
    for name in ("worst", "bottom_decile"):
        over = catalogue.METRICS[catalogue.part(metric.name, name)].over
        assert over is not None
        beside[f"baseline_{name}"] = float(np.mean([over(base, base) for base in bases]))
    if metric.lower_is_better and items[0].labels.kind != CLASSES:  # an error, of which a part is gained
        beside["baseline_mean"] = float(np.mean([*map(scores.weighted_mean, bases, weight)]))
    differing = [_count_differing(item)[chosen] for item, chosen in zip(items, tested, strict=True)]
    if any(counts.any() for counts in differing):
        if (found := estimate_gain(items, "", identities, items[0].seed_variance)) is not None:
            beside |= {**found[1], "p": found[0].p}
    elif not all(item.score is item.baseline for item in items):  # a tie is a comparison with a gain of 0
        beside |= {"interval": [0.0, 0.0], "standard_error": 0.0, "p": 1.0}
    means = [scores.weighted_mean(g, w) for g, w in zip(gain, weight, strict=True)]
    if len(items) > 1:
        beside["positive_seeds"] = sum(mean > 0 for mean in means)
    if items[0].is_reference:  # it is not tested
        beside.pop("p", None)
    metrics.add("gain", count, means, **beside)
    repeated = all(np.array_equal(items[0].samples, item.samples) for item in items)
    by_chance, high = gains.estimate_chance(differing, rng.generator(0, "chance", label), repeated=repeated)
    for name, sign in (("better_off", 1), ("worse_off", -1)):
        shares = [float((sign * g > 0).mean()) for g in gain]
        exceeds = bool(np.mean(shares) > high)
        chance: dict[str, Any] = {"by_chance": by_chance, "by_chance_high": high, "exceeds_chance": exceeds}
        metrics.add(name, count, shares, **of, **({} if items[0].is_reference else chance))


def estimate_gain(
    items: Sequence[ScoredPredictions], other: str, identities: Mapping[int, NDArray[np.str_]], variance: float | None
) -> tuple[Estimate, dict[str, Any]] | None:
    """Return the mean gain and its interval and spread, with ``many_seeds`` too and for ``these_clients``, or None.

    The last is there for few clients that are the same under each seed. It is unknown with a single seed, and for
    metrics but accuracy. ``other`` is the label of training alone, or empty for the baseline. ``variance`` is the one
    over seeds that all methods share. A single client has no interval.
    """
    tested = [(item, ~np.isnan(item.gain)) for item in items]
    estimate = gains.mean_gain(
        [item.gain[chosen] for item, chosen in tested],
        [item.n[chosen].astype(float) for item, chosen in tested],
        [identities[item.seed][chosen] for item, chosen in tested],
        variance,
    )
    if estimate is None:
        return None
    record: dict[str, Any] = {"interval": [*estimate.interval]}
    record |= dict(zip(_SPREAD, (estimate.error, estimate.freedom), strict=True))
    if estimate.many_seeds is not None:
        record["many_seeds"] = dict(zip(_SPREAD, estimate.many_seeds, strict=True))
    names = [np.unique(identities[item.seed][item.n > 0]) for item in items]
    if len(names[0]) > fixed_clients.MAX_FIXED or not all(np.array_equal(names[0], each) for each in names[1:]):
        return estimate, record
    record["these_clients"] = {"clients": len(names[0])}
    if len(items) > 1 and items[0].metric_names[0] == "accuracy":
        order = [np.argsort(identities[item.seed]) for item in items]
        sums = [item.pairs[other][places][item.n[places] > 0] for item, places in zip(items, order, strict=True)]
        fixed = fixed_clients.mean_gain(np.stack(sums).swapaxes(1, 2), variance)
        if fixed is not None:
            record["these_clients"] |= dict(zip(_SPREAD, (fixed.error, fixed.freedom), strict=True))
    return estimate, record


def _count_differing(item: ScoredPredictions) -> NDArray[np.int64]:
    """Return the number of each client's samples, (m,), on which exactly one of method and baseline is right.

    For metrics other than accuracy it is 1 for a client whose scores differ, else 0.
    """
    if item.metric_names[0] != "accuracy":
        return np.asarray(np.nan_to_num(item.gain) != 0, np.int64)
    return item.discordant


def _add_seen_and_unseen(metrics: _Row, items: Sequence[Scored]) -> None:
    """Add the scores of seen clients, which could take part in training, and of unseen clients."""
    for group, late in (("seen", False), ("unseen", True)):
        if any(item.new is None for item in items):
            return
        count = sum(int((item.n[item.new == late] > 0).sum()) for item in items)
        if "accuracy" in items[0].client:
            chosen = [(item.client["accuracy"][item.new == late], item.n[item.new == late]) for item in items]
            metrics.add(f"accuracy_{group}", count, [scores.weighted_mean(*pair) for pair in chosen])
            worst = [scores.bottom_decile(accuracy) for accuracy, _ in chosen]
            metrics.add(f"bottom_decile_{group}", count, worst)
        for name in items[0].metric_names:
            if f"{name}_{group}" not in metrics:
                values = [(item.client[name][item.new == late], item.n[item.new == late]) for item in items]
                defined = _count_defined([value for value, _ in values])
                weighted = [scores.weighted_mean(*pair) for pair in values]
                metrics.add(f"{name}_{group}", defined, weighted, of=count)


def _add_train_accuracy(metrics: _Row, items: Sequence[Scored]) -> None:
    """Add the accuracy on training samples if they were predicted (kNN-Per, Table 3, in parentheses)."""
    if "accuracy" not in items[0].client or not all(predictions.has_split(item.artifact, "train") for item in items):
        return
    groups: dict[str, list[float]] = {"": [], "_seen": [], "_unseen": []}
    for item in items:
        answers = predictions.read(item.artifact, "train")
        right = scores.per_client(scores.correct(answers.parts["p"], answers.y), answers.offsets)
        n, late = np.diff(answers.offsets), item.new
        chosen = {"": n >= 0} if late is None else {"": n >= 0, "_seen": ~late, "_unseen": late}
        for group, clients in chosen.items():
            groups[group].append(scores.weighted_mean(right[clients], n[clients]))
    for group, values in groups.items():
        if len(values) == len(items):
            metrics.add(f"train_accuracy{group}", len(items), values)


def _add_last_rounds(metrics: _Row, items: Sequence[Scored]) -> None:
    """Add the mean test accuracy over the last rounds, if it was measured after each of them."""
    known = [round_costs.last_accuracies(item.artifact) for item in items]
    if "accuracy" in items[0].client and all(known):
        count = min(map(len, known))
        metrics.add("last_rounds_accuracy", count, [float(np.mean(each)) for each in known], words=str(count))


def _add_costs(metrics: _Row, items: Sequence[Scored]) -> None:
    """Add what the runs cost up to the reported round and, where methods end at their own round, this round."""
    facts, runs = [item.artifact.manifest for item in items], len(items)
    if any(fact.summary.get("foreign") for fact in facts):  # another tool has not said what it spent
        return
    later = [round_costs.measure_later(item.artifact) for item in items]
    sent = {
        link: [fact.summary[link] - spare[link] for fact, spare in zip(facts, later, strict=True)]
        for link in round_costs.LINKS
    }
    for link, values in sent.items():
        metrics.add(link, runs, values)
    total = [sum(amounts) / 1e6 for amounts in zip(*sent.values(), strict=True)]
    metrics.add("megabytes", runs, total)
    shared = [megabytes / fact.summary["clients"] for megabytes, fact in zip(total, facts, strict=True)]
    metrics.add("megabytes_per_client", runs, shared)
    moved = [
        1e6 * megabytes * round_costs.exchanges_per_byte(item.artifact)
        for megabytes, item in zip(total, items, strict=True)
    ]
    metrics.add("exchanges", runs, moved)
    spent = [fact.made["seconds"] + fact.made.get("seconds_inputs", 0) for fact in facts]
    needed = [max(seconds - spare["seconds"], 0.0) for seconds, spare in zip(spent, later, strict=True)]
    metrics.add("seconds", runs, needed)
    if all("processor_seconds_inputs" in fact.made for fact in facts):  # stacks and later clients do not
        busy = [fact.made["processor_seconds"] + fact.made["processor_seconds_inputs"] for fact in facts]
        # Rounds have no processor seconds of their own: later ones are taken to have their share of the seconds.
        parts = zip(busy, needed, spent, strict=True)
        metrics.add("processor_seconds", runs, [all_ * (part / whole if whole else 1) for all_, part, whole in parts])
    chosen = [fact.request.get("settings", {}) for fact in facts]
    if any(each.get("report") == "best" or each.get("patience") for each in chosen):  # each run has a round of its own
        rounds = [_find_reported(item.artifact) for item in items]
        metrics.add("reported_round", len(items), rounds)


def _find_reported(artifact: Artifact) -> float:
    """Return the reported round; nan without rounds, or if the backbone that played them no longer exists."""
    try:
        found = round_costs.reported_round(artifact)
    except GoneError:
        return math.nan
    return math.nan if found is None else found
