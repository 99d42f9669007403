"""Judge claims by the predictions of comparisons: each difference with its interval, each setting, and the claim."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts.kinds import evaluation
from pflcli.artifacts.reader import Artifact, follow
from pflcli.core import scores
from pflcli.core.metrics import catalogue
from pflcli.core.wording import counted
from pflcli.evaluation import scoring, stored_scores, summary
from pflcli.evaluation.metrics import gains
from pflcli.evaluation.metrics.gains import Estimate
from pflcli.evaluation.round_costs import Link
from pflcli.evaluation.summary import Scored
from pflcli.plugins.claims.claims_file import Claim
from pflcli.plugins.claims.comparisons import Cell
from pflcli.plugins.claims.kind import CONFIRMED, IN_PART, NOT_CONFIRMED, UNDECIDED
from pflcli.workflow.comparison.extend import marked_references

SPLIT = "test"
_ROUNDING = 1e-12
"""Largest standard error that is one of rounding."""


@dataclass(frozen=True)
class Runs:
    """The scored runs of a comparison by method and seed, and the seeds of the runs that failed."""

    scored: Mapping[str, Mapping[int, Scored]]
    failed: Mapping[str, Sequence[int]]
    target: float | None = None
    link: Link | None = None
    level: float = gains.LEVEL
    """the coverage of intervals"""

    @classmethod
    def read(
        cls,
        comparisons: Sequence[Artifact],
        metrics: Sequence[str],
        target: float | None = None,
        link: str | None = None,
        imported: Mapping[str, Sequence[Artifact]] | None = None,
    ) -> Runs:
        """Score the predictions of comparisons with different seeds, and those of other tools, ``imported``.

        Raises InputError if an artifact is damaged or gone.
        """
        labelled = [
            (follow(comparison, reference), reference.role.rpartition(", seed ")[0])
            for comparison in comparisons
            for reference in comparison.manifest.inputs
        ]
        labelled += [(artifact, name) for name, artifacts in (imported or {}).items() for artifact in artifacts]
        failed: dict[str, list[int]] = {}
        for comparison in comparisons:
            for name, seeds in evaluation.read(comparison).get("failed", {}).items():
                failed.setdefault(name, []).extend(seeds)
        parsed = None if link is None else Link.parse(link)
        if not labelled:
            return cls({}, failed, target, parsed)
        bases = [catalogue.METRICS[name].score or name for name in metrics if name in catalogue.METRICS]
        optional = [name for name in bases if catalogue.METRICS[name].optional]
        names = tuple(dict.fromkeys([*catalogue.DEFAULT, *optional]))
        artifacts, labels = zip(*labelled, strict=True)
        scored: dict[str, dict[int, Scored]] = {}
        references = set.union(*(marked_references(each.manifest.request["methods"]) for each in comparisons))
        for item in scoring.score(artifacts, SPLIT, "fedavg", labels, names, references=references):
            scored.setdefault(item.label, {})[item.seed] = item
        return cls(scored, failed, target, parsed)

    @property
    def seeds(self) -> set[int]:
        """All seeds."""
        return {seed for by_seed in self.scored.values() for seed in by_seed}

    def value(self, metric: str, item: Scored) -> float:
        """Return a metric of one run; nan if it has none."""
        return float(stored_scores.measure_run(item, self.target, self.link).get(metric, math.nan))

    def seed_variance(self, names: Sequence[str], metric: str, part: str) -> float | None:
        """Return the variance over seeds of the difference between two methods that all of the comparison share.

        These are the methods by which its table estimates it: those that are ranked and have the same seeds. None if
        there are too few, or if one of the two is not among them or varies more than they do.
        """
        seeds = sorted(self.seeds)
        means = {
            label: [scores.weighted_mean(*_choose_clients(by_seed[seed], metric, part)[:2]) for seed in seeds]
            for label, by_seed in self.scored.items()
            if len(by_seed) == len(seeds)
            and not any(item.is_reference or item.repeats_baseline for item in by_seed.values())
        }
        shared = gains.share_variance(means)
        one, other = names
        return shared.of_difference(one, other) if shared is not None and {one, other} <= {*means} else None


def judge(claim: Claim, cells: Sequence[Cell], runs: Mapping[str, Runs]) -> dict[str, Any]:
    """Return the verdict on a claim: in each cell by the ``runs`` of its comparison, and over all cells."""
    judged = [_judge_cell(claim, cell, runs[cell.comparison]) for cell in cells]
    verdicts = [cell["verdict"] for cell in judged]
    verdict = combine(verdicts)
    cause = NOT_CONFIRMED if verdict == IN_PART else verdict
    decisive = min(
        (cell["decided_by"] for cell in judged if cell["verdict"] == cause),
        key=lambda item: _rank(item, claim.direction),
    )
    return {
        "says": claim.says,
        "where": claim.where,
        "verdict": verdict,
        "holds": verdicts.count(CONFIRMED),
        "settings": len(judged),
        "decided_by": decisive,
        "cells": judged,
    }


def combine(verdicts: Sequence[str]) -> str:
    """Return the verdict over several settings: that of all of them, in part if it holds in some and fails in others.

    Otherwise, at least one setting that could change the verdict is undecided, and so is the claim.
    """
    found = {*verdicts}
    if len(found) == 1:
        return found.pop()
    return IN_PART if {CONFIRMED, NOT_CONFIRMED} <= found else UNDECIDED


def _judge_cell(claim: Claim, cell: Cell, runs: Runs) -> dict[str, Any]:
    """Return the verdict in one setting, where the condition has to hold for every pair of methods.

    A condition that holds for every pair needs no correction, as each has to be shown. One that fails may have been
    drawn from many: it has to fail by an interval with Bonferroni's correction for the number of pairs.
    """
    differences = [_compare(claim, pair, cell, runs, len(cell.pairs)) for pair in cell.pairs]
    settled = [item["holds"] for item in differences]
    verdict = NOT_CONFIRMED if False in settled else UNDECIDED if None in settled else CONFIRMED
    cause = {NOT_CONFIRMED: False, UNDECIDED: None, CONFIRMED: True}[verdict]
    decisive = min(
        (item for item in differences if item["holds"] is cause), key=lambda item: _rank(item, claim.direction)
    )
    return {
        "comparison": cell.comparison,
        "experiment": cell.experiment,
        "at": dict(cell.at),
        "verdict": verdict,
        "decided_by": decisive,
        "differences": differences,
    }


def _rank(difference: Mapping[str, Any], direction: str) -> float:
    """Return how much a difference speaks for a claim; one that is unknown comes first."""
    value = difference["difference"]
    if value is None:
        return -math.inf
    if direction == "level":
        return -abs(float(value))
    return -float(value) if direction in ("lower", "not-higher") else float(value)


def _compare(claim: Claim, pair: tuple[str, str | None], cell: Cell, runs: Runs, pairs: int) -> dict[str, Any]:
    """Return the difference of two methods with its interval, and whether it satisfies the claim: None if undecided.

    The interval is the one that decided: that without a correction if the claim holds, otherwise the corrected one.
    """
    method, other = pair
    record: dict[str, Any] = {
        "experiment": cell.experiment,
        "at": dict(cell.at),
        "metric": claim.metric,
        "method": method,
        "against": claim.value if other is None else other,
        "seeds": [],
        "difference": None,
        "interval": None,
        "level": None,
        "holds": None,
        "reason": "",
    }
    names = [name for name in pair if name is not None]
    for name in names:
        if name not in runs.scored and name not in runs.failed:
            return {**record, "reason": f"{name} was left out, as it does not suit the data"}
    lost = {name: runs.failed[name] for name in names if name in runs.failed}
    failed = "; ".join(
        f"{name} failed with seed{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
        for name, numbers in lost.items()
    )
    if not {*names} <= {*runs.scored}:
        return {**record, "reason": failed}
    seeds = sorted(set.intersection(*({*runs.scored[name]} for name in names)))
    record["seeds"] = seeds
    sides = [[runs.scored[name][seed] for seed in seeds] for name in names]
    mean, estimate = _estimate(claim, names, sides, runs)
    if mean is None:
        return {**record, "reason": f"{claim.metric} is unknown"}
    record["difference"] = mean
    if estimate is None:
        return {**record, "reason": f"{counted(len(seeds), 'seed')} without an interval"}
    if estimate.error < _ROUNDING and (step := _measure_step(claim.metric, sides)):
        estimate = Estimate.by_student(mean, step / math.sqrt(len(seeds)), max(1, len(seeds) - 1))
        record["floor"] = step
    record |= {"interval": list(estimate.interval_at(runs.level)), "level": runs.level}
    if failed:
        return {**record, "reason": failed}
    if len(seeds) < claim.seeds:
        return {**record, "reason": f"{len(seeds)} of {counted(claim.seeds, 'seed')}"}
    if settle(estimate.interval_at(runs.level), claim.direction, claim.margin) is True:
        return {**record, "holds": True}
    level = 1 - (1 - runs.level) / pairs
    corrected = estimate.interval_at(level)
    contradicts = settle(corrected, claim.direction, claim.margin) is False
    return {**record, "interval": list(corrected), "level": level, "holds": False if contradicts else None}


def settle(interval: tuple[float, float], direction: str, margin: float) -> bool | None:
    """Return whether all differences in an interval satisfy a condition: None if only some of them do."""
    low, high = interval
    if direction in ("lower", "not-higher"):
        low, high = -high, -low
    if direction in ("higher", "lower"):
        return True if low > margin else False if high <= margin else None
    if direction in ("not-lower", "not-higher"):
        return True if low >= -margin else False if high < -margin else None
    return True if -margin <= low and high <= margin else False if low > margin or high < -margin else None


def _estimate(
    claim: Claim, names: Sequence[str], sides: Sequence[Sequence[Scored]], runs: Runs
) -> tuple[float | None, Estimate | None]:
    """Return the mean difference over seeds and its estimate; None for what is unknown.

    ``sides`` are the runs of one method, or of two, by seed. A score that clients have is compared by client, so that
    the interval is that of a gain in the table of the comparison; other metrics are compared by seed.
    """
    if not sides[0]:
        return None, None
    per_client = _scores_by_client(claim.metric)
    if per_client is not None and len(sides) == 2:
        metric, part = per_client
        shared = runs.seed_variance(names, metric, part)
        estimate = _estimate_over_clients(metric, part, sides[0], sides[1], shared)
        if estimate is not None:
            return estimate.mean, estimate
    values = [[runs.value(claim.metric, item) for item in items] for items in sides]
    base = values[1] if len(sides) == 2 else [claim.value or 0.0] * len(values[0])
    differences = [a - b for a, b in zip(values[0], base, strict=True)]
    if any(map(math.isnan, differences)):
        return None, None
    mean = float(np.mean(differences))
    return mean, gains.mean_difference(differences)


def _measure_step(metric: str, sides: Sequence[Sequence[Scored]]) -> float:
    """Return by how much one test sample of a client changes a score: the least standard deviation between its seeds.

    A difference that is the same with every seed, as that of a quantile of a few clients' scores often is, varies by
    less than these steps show, which is not 0. Costs and rounds may have no error: their step is 0.
    """
    if not is_of_scores(metric):
        return 0.0
    samples = [item.n[item.n > 0] for items in sides for item in items]
    if _scores_by_client(metric) is not None:
        return float(1 / np.mean([n.sum() for n in samples]))
    return float(1 / np.median(np.concatenate(samples)))


def is_of_scores(metric: str) -> bool:
    """Return whether a metric is computed from predictions on test samples, other than costs and rounds."""
    entry = catalogue.METRICS.get(metric)
    return entry is not None and (entry.unit == "fraction" or entry.is_per_client or bool(entry.score))


def _scores_by_client(metric: str) -> tuple[str, str] | None:
    """Return the ranking metric that a metric averages over clients, and which clients: seen, unseen or all.

    None for a metric that is no mean over clients weighted by their samples.
    """
    base, _, part = metric.rpartition("_")
    if part in ("seen", "unseen") and base in catalogue.METRICS and catalogue.METRICS[base].ranks:
        return base, part
    entry = catalogue.METRICS.get(metric)
    return (metric, "all") if entry is not None and entry.ranks else None


def _estimate_over_clients(
    metric: str, part: str, items: Sequence[Scored], others: Sequence[Scored], seed_variance: float | None
) -> Estimate | None:
    """Estimate the difference of a metric by client; None if it is unknown, or for a single client."""
    known = summary.identify_clients(items)
    differences, weights, clients = list[NDArray[Any]](), list[NDArray[Any]](), list[NDArray[Any]]()
    for item, other in zip(items, others, strict=True):
        difference, weight, chosen = _choose_clients(item, metric, part, other)
        if not chosen.any():
            return None
        differences.append(difference)
        weights.append(weight)
        clients.append(known[item.seed][chosen])
    return gains.mean_gain(differences, weights, clients, seed_variance)


def _choose_clients(
    item: Scored, metric: str, part: str, minus: Scored | None = None
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return the known values of a metric by client, their weights, and which of all clients these are.

    ``part`` is "all", "seen" or "unseen". The values are differences if ``minus`` is another run.
    """
    values = item.client[metric] if minus is None else item.client[metric] - minus.client[metric]
    chosen = ~np.isnan(values)
    if part != "all":
        chosen &= np.False_ if item.new is None else item.new == (part == "unseen")
    return values[chosen], item.n[chosen].astype(float), chosen
