"""Coverage and size of prediction sets, by client, method and seed. Needs only NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import codebook, csv_file
from pflcli.artifacts.kinds import predictions, read_labels
from pflcli.artifacts.kinds.predictions import SplitPredictions
from pflcli.artifacts.reader import Artifact
from pflcli.core import scores
from pflcli.core.errors import InputError, UsageError
from pflcli.core.metrics.metric import ALIKE, BY_SAMPLES, DECILE, LABEL_UNIT, Metric
from pflcli.core.tasks import CLASSES
from pflcli.core.wording import counted
from pflcli.evaluation.metrics import conformal
from pflcli.evaluation.metrics.conformal import ClientSets, Rule

if TYPE_CHECKING:  # it imports scipy.special, which takes a quarter of a second
    from pflcli.core.engine.tasks import Task
    from pflcli.evaluation.summary import Scored

TABLE = "sets.csv"
CLIENTS = "sets_clients.csv"

SPLIT = "test"
"""The split whose sets are scored. Validation samples calibrate, and the method was fitted to training samples."""

_GLOBAL_ALONE = ("fedavg", "fedprox", "fedsgd", "scaffold")
"""Methods whose clients all predict with the global model. Its predictions are not stored separately."""


@dataclass(frozen=True)
class PredictionSets:
    """The sets of n samples of one client, with their calibration."""

    coverage: float
    rule: str
    threshold: float
    """highest score, 1 - p or |label - p|, of a label in a set; infinite if the sets contain all labels"""
    n_validation: int
    """number of the client's validation samples"""
    members: NDArray[Any]
    """True for each class in a sample's set, (n, C); of numbers, the ends of the interval, (n, 2)"""

    @property
    def remark(self) -> str:
        """A warning if the sets contain all labels, else an empty string."""
        if not np.isinf(self.threshold):
            return ""
        advice = "" if self.rule != "own" else "; --threshold shrunk also uses the other clients' samples"
        return (
            f"the sets contain all {'classes' if self.members.dtype == np.bool_ else 'numbers'}: "
            f"{counted(self.n_validation, 'validation sample')} of the client are too few"
            f" for coverage {100 * self.coverage:.6g} % ({self.rule} threshold){advice}"
        )


_METRICS = {
    metric.name: metric
    for metric in (
        Metric("coverage", "fraction", BY_SAMPLES, over=scores.weighted_mean),
        Metric("coverage_mean", "fraction", ALIKE, over=scores.mean),
        Metric("coverage_bottom_decile", "fraction", DECILE, over=scores.lowest_decile),
        Metric("set_size", "classes", BY_SAMPLES, over=scores.weighted_mean),
        Metric("set_size_mean", "classes", ALIKE, over=scores.mean),
        Metric("infinite_thresholds", "clients", "seeds"),
    )
}


def check_options(coverage: float | None, split: str = SPLIT) -> None:
    """Raise UsageError if ``coverage`` is not between 0 and 1, or if it is given with a split other than test."""
    if coverage is None:
        return
    conformal.require_level(coverage)
    if split != SPLIT:
        raise UsageError(
            f"--coverage is measured on test samples: {split} samples were used to calibrate or to learn",
            f"leave out --coverage or --split {split}",
        )


def read_calibration(artifact: Artifact) -> SplitPredictions:
    """Read the predictions of validation samples; raises InputError if there are none to calibrate on."""
    if not predictions.has_split(artifact, "validation"):
        raise InputError(
            f"{artifact.path} has no predictions on validation samples, which --coverage calibrates on: they were"
            " trained on (--refit)",
            "make the predictions again without --refit",
        )
    validation = predictions.read(artifact, "validation")
    if not len(validation.y):
        raise InputError(
            f"{artifact.path} has no validation samples, which --coverage calibrates on",
            "pfl partition DATASET -o DIR --fractions 0.6,0.2,0.2",
        )
    return validation


def measure_sets(artifact: Artifact, test: SplitPredictions, coverage: float) -> ClientSets:
    """Calibrate on each client's validation samples and score the sets of its test samples, with every rule.

    Raises InputError as ``read_calibration``.
    """
    validation = read_calibration(artifact)
    if len(validation.offsets) != len(test.offsets):
        raise InputError(f"{artifact.path}/predictions.h5 is inconsistent: its splits have different clients")
    labels, rules = read_labels(artifact.manifest, 0), {}
    if labels.kind == CLASSES:
        known = conformal.score_labels(validation.parts["p"], validation.y)
    else:
        known, _ = _score_numbers(labels.task(), validation.parts["p"], validation.y, coverage)
        errors, length = _score_numbers(labels.task(), test.parts["p"], test.y, coverage)
    for rule in conformal.RULES:
        threshold = conformal.find_thresholds(known, validation.offsets, coverage, rule)
        moved = np.repeat(threshold, np.diff(test.offsets))
        if labels.kind == CLASSES:
            members = conformal.build_sets(test.parts["p"], moved)
            covered, size = members[np.arange(len(test.y)), test.y], members.sum(axis=1)
        else:  # each end of the task's intervals is moved by the threshold; the width is nan where it is infinite
            covered = errors <= moved
            size = np.maximum(length + 2 * np.where(np.isfinite(moved), moved, np.nan), 0.0)
        rules[rule] = Rule(threshold, *(scores.per_client(values, test.offsets) for values in (covered, size)))
    return ClientSets(coverage, np.diff(validation.offsets), rules, of_numbers=labels.kind != CLASSES)


def _score_numbers(
    task: Task, p: NDArray[Any], y: NDArray[Any], level: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how far labels (n,) are outside the task's intervals around predictions (n, C), and the lengths."""
    low, high = task.bounds(p, level)
    return np.maximum(low - y, y - high), high - low


def calibrate_client_sets(
    artifact: Artifact,
    client: int | None,
    p: NDArray[Any],
    level: float,
    rule: str,
    disclose: Callable[[NDArray[Any]], NDArray[Any]] = lambda p: p,
) -> PredictionSets:
    """Return the sets of n samples of one client, calibrated on stored predictions.

    ``client`` is the client's number and ``p`` (n, C) the predictions for its samples. An unknown client (None) gets
    predictions of the global model and has no validation samples. ``disclose`` rounds both ``p`` and the stored
    predictions, so that a set reveals no more than the published predictions.

    Raises InputError as ``read_calibration``, or if no predictions of the global model are stored.
    """
    validation = read_calibration(artifact)
    known, offsets = validation.parts["p"], validation.offsets
    if client is None:
        shared = "p" if artifact.manifest.request["method"] in _GLOBAL_ALONE else "global"
        if shared not in validation.parts:
            raise InputError(
                f"{artifact.path} has no predictions of its global model on validation samples, so it cannot calibrate"
                " sets for a client that it does not know",
                f"pfl new-client {artifact.path} DATA -o DIR adds the client",
            )
        known, offsets = validation.parts[shared], np.append(offsets, offsets[-1])
    labels, at = read_labels(artifact.manifest, p.shape[1]), -1 if client is None else client
    if labels.kind == CLASSES:
        scored = conformal.score_labels(disclose(known), validation.y)
    else:
        scored, _ = _score_numbers(labels.task(), disclose(known), validation.y, level)
    threshold = float(conformal.find_thresholds(scored, offsets, level, rule)[at])
    if labels.kind == CLASSES:
        members = conformal.build_sets(disclose(p), threshold, p.argmax(axis=1))
    else:
        low, high = labels.task().bounds(disclose(p), level)
        members = np.maximum(np.stack([low - threshold, high + threshold], axis=1), labels.task().least)
    return PredictionSets(level, rule, threshold, int(np.diff(offsets)[at]), members)


def summarize_sets(groups: Mapping[str, Sequence[Scored]], tried: Mapping[str, int]) -> dict[str, Any]:
    """Return ``sets`` of ``metrics.json``: the results of all rules over all seeds, by the label of the method.

    ``tried`` is the number of models from which ``--tune`` chose by validation samples, by label.
    """
    sets = _require_sets(next(iter(groups.values()))[0])
    level = sets.level
    return {
        "coverage": level,
        "score": "distance of the label from the prediction" if sets.of_numbers else "1 - p(label)",
        "fewest_samples": conformal.fewest_samples(level),
        "pseudo_count": conformal.pseudo_count(level),
        "methods": {label: _summarize_method(items, level, tried.get(label, 1)) for label, items in groups.items()},
    }


def _require_sets(item: Scored) -> ClientSets:
    assert item.sets is not None
    return item.sets


def _summarize_method(items: Sequence[Scored], level: float, tried: int) -> dict[str, Any]:
    fewest = conformal.fewest_samples(level)
    few = {item.seed: np.flatnonzero((_require_sets(item).n_validation < fewest) & (item.n > 0)) for item in items}
    chooses = tried > 1 or any(_chose_on_validation(item) for item in items)
    tuning = {"models_tried": tried, "least_coverage": _bound_coverage(items, level, tried)} if tried > 1 else {}
    return {
        "too_few_samples": {
            str(item.seed): [_client_names(item)[client] for client in few[item.seed]] for item in items
        },
        **({"chose_on_validation": True} if chooses else {}),
        **tuning,
        "thresholds": {rule: _summarize_rule(items, rule) for rule in conformal.RULES},
    }


def _bound_coverage(items: Sequence[Scored], level: float, tried: int) -> dict[str, float]:
    """Return lower bounds of the mean coverage over test samples, by threshold rule; shrunk thresholds have none."""
    own, pooled = [], []
    for item in items:
        counts = _require_sets(item).n_validation
        bounds = {int(n): conformal.least_coverage(level, int(n), tried) for n in np.unique(counts)}
        own.append(scores.weighted_mean(np.asarray([bounds[int(n)] for n in counts]), item.n))
        pooled.append(conformal.least_coverage(level, int(counts.sum()), tried))
    return {"own": float(np.mean(own)), "pooled": float(np.mean(pooled))}


def _summarize_rule(items: Sequence[Scored], rule: str) -> dict[str, Any]:
    each = [_require_sets(item).rules[rule] for item in items]
    tested = sum(int((item.n > 0).sum()) for item in items)
    infinite = [float((np.isinf(sets.threshold) & (item.n > 0)).sum()) for sets, item in zip(each, items, strict=True)]
    result = {}
    for name, metric in _METRICS.items():
        if metric.over is None:
            result[name] = metric.record(infinite, tested)
            continue
        over = metric.over
        by_client = [sets.coverage if name.startswith("coverage") else sets.size for sets in each]
        values = [
            math.nan if np.isnan(value).all() else over(value, item.n)
            for value, item in zip(by_client, items, strict=True)
        ]
        count = sum(int(item.n.sum()) for item in items) if metric.weighting == BY_SAMPLES else tested
        unit = {"unit": LABEL_UNIT} if "size" in name and _require_sets(items[0]).of_numbers else {}
        result[name] = metric.record(values, count, **unit)
    return result


def _chose_on_validation(item: Scored) -> bool:
    """Return whether values, the reported round or a stack's exponents were chosen on validation samples.

    A reference, such as `alone`, chooses on training samples.
    """
    request = item.artifact.manifest.request
    return (
        (bool(item.tuned) and not item.is_reference)
        or request["method"] == "stack"
        or request["settings"].get("report") == "best"
    )


def _client_names(item: Scored) -> list[str]:
    known = codebook.read(item.artifact).clients
    return list(known) if len(known) == len(item.n) else [f"client {client}" for client in range(len(item.n))]


def render_table(sets: Mapping[str, Any], labels: Sequence[str]) -> bytes:
    """Return ``sets.csv``: a row for each of the methods ``labels`` and each threshold, from the stored ``sets``."""
    heading = ["method", "threshold"]
    for name in _METRICS:
        heading += [name, f"{name}_std_over_seeds"]
    rows = [
        [label, rule, *(entry[name][key] for name in _METRICS for key in ("value", "std_over_seeds"))]
        for label in labels
        for rule, entry in sets["methods"][label]["thresholds"].items()
    ]
    return csv_file.encode_rounded(heading, rows)


def render_client_table(scored: Sequence[Scored]) -> bytes:
    """Return ``sets_clients.csv``: a row for each client of each method and seed; an infinite threshold is ``inf``."""
    heading = ["method", "seed", "client", "name", "n_validation", f"n_{SPLIT}"]
    heading += [f"{column}_{rule}" for rule in conformal.RULES for column in ("threshold", "coverage", "set_size")]
    rows: list[list[Any]] = []
    for item in scored:
        sets, names = _require_sets(item), _client_names(item)
        for client in range(len(item.n)):
            values = [
                float(value[client])
                for rule in conformal.RULES
                for value in (sets.rules[rule].threshold, sets.rules[rule].coverage, sets.rules[rule].size)
            ]
            counts = [int(sets.n_validation[client]), int(item.n[client])]
            rows.append([item.label, item.seed, client, names[client], *counts, *values])
    return csv_file.encode_rounded(heading, rows)
