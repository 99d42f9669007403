"""Scores of stored predictions: per client, and over clients and seeds, a row for each method. NumPy alone."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli import rng
from pflcli.artifacts import predictions
from pflcli.artifacts.artifact import Artifact
from pflcli.artifacts.store import Work
from pflcli.errors import InputError, UsageError, closest
from pflcli.metrics import scores
from pflcli.report import pictures
from pflcli.steps import reaching

DRAWS = 2000
"""Draws of the bootstrap."""
_PER_CLIENT = ("accuracy", "log_loss", "macro_precision", "calibration_error")


@dataclass(frozen=True)
class Scored:
    """One predictions artifact, scored: (m,) arrays by client."""

    label: str
    seed: int
    artifact: Artifact
    answers: predictions.Answers
    n: NDArray[np.int64]
    client: dict[str, NDArray[np.float64]]
    tuned: dict[str, NDArray[np.float64]]
    new: NDArray[np.bool_] | None = None
    baseline: NDArray[np.float64] | None = None


def score(
    artifacts: Sequence[Artifact], split: str, baseline: str, labels: Sequence[str] | None = None
) -> list[Scored]:
    """Score predictions and pair each with its baseline.

    Those of one label are rows of one method, a seed each; without ``labels`` they follow from what was requested.
    Raises UsageError if the baseline is another than FedAvg and not among them, InputError without samples to score.
    """
    named = _labels(artifacts) if labels is None else list(zip(artifacts, labels, strict=True))
    return _paired([_score(artifact, label, split) for artifact, label in named], baseline)


def metrics(scored: Sequence[Scored], split: str, baseline: str, target: float | None = None) -> dict[str, Any]:
    """Return a row for each method, several seeds together; with a ``target`` accuracy, how long each took to it."""
    groups = _groups(scored)
    found: dict[str, Any] = {
        "split": split,
        "baseline": baseline if baseline in groups else "global" if _has_baseline(scored) else None,
        "reported": "last round",
        "methods": [_method(label, items) for label, items in groups.items()],
    }
    if target is not None:
        found["target"] = target
        for method, items in zip(found["methods"], groups.values(), strict=True):
            method["metrics"] |= reaching.metrics([item.artifact for item in items], target)
    return found


def write(work: Work, scored: Sequence[Scored], metrics: Mapping[str, Any]) -> None:
    """Write ``metrics.json``, ``clients.csv`` and ``accuracy.png``."""
    work.write("metrics.json", (json.dumps(_json(metrics), indent=2) + "\n").encode())
    work.write("clients.csv", _table(scored, metrics["split"]))
    work.write("accuracy.png", _picture(scored, metrics))


def read(artifact: Artifact) -> dict[str, Any]:
    """Return the stored metrics of an evaluation or a comparison."""
    metrics: dict[str, Any] = json.loads(artifact.read("metrics.json"))
    return metrics


def _groups(scored: Sequence[Scored]) -> dict[str, list[Scored]]:
    groups: dict[str, list[Scored]] = {}
    for item in sorted(scored, key=lambda item: item.seed):
        groups.setdefault(item.label, []).append(item)
    return {label: groups[label] for label in dict.fromkeys(item.label for item in scored)}


def _labels(artifacts: Sequence[Artifact]) -> list[tuple[Artifact, str]]:
    """Name each predictions artifact by its method, and by the options in which namesakes differ."""
    by_method: dict[str, list[dict[str, Any]]] = {}
    for artifact in artifacts:
        by_method.setdefault(artifact.manifest.request["method"], []).append(_choices(artifact))
    named = []
    for artifact in artifacts:
        method, mine = artifact.manifest.request["method"], _choices(artifact)
        differing = [k for k, v in mine.items() if any(other.get(k) != v for other in by_method[method])]
        named.append((artifact, " ".join([method, *(f"{key}={_short(mine[key])}" for key in differing)])))
    # The same method, options and seed on another partition or backbone is another row, named by its folder.
    rows = Counter((label, artifact.manifest.request["seed"]) for artifact, label in named)
    twice = {label for (label, _), count in rows.items() if count > 1}
    return [(artifact, f"{label} ({artifact.path})" if label in twice else label) for artifact, label in named]


def _choices(artifact: Artifact) -> dict[str, Any]:
    request = artifact.manifest.request
    return {**request["settings"], **request["options"]}


def _short(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _score(artifact: Artifact, label: str, split: str) -> Scored:
    answers = predictions.read(artifact, split)
    p, y, bounds = answers.parts["p"], answers.y, answers.offsets
    if not len(y):
        raise InputError(
            f"{artifact.path} has no {split} samples to score",
            "pfl partition DATASET -o DIR --fractions 0.6,0.2,0.2",
        )
    spans = list(itertools.pairwise(bounds))
    client = {
        "accuracy": scores.per_client(scores.correct(p, y), bounds),
        "log_loss": scores.per_client(scores.log_loss(p, y), bounds),
        "macro_precision": np.asarray([scores.macro_precision(p[a:b], y[a:b]) for a, b in spans]),
        "calibration_error": np.asarray([scores.calibration_error(p[a:b], y[a:b]) for a, b in spans]),
    }
    seed = int(artifact.manifest.request["seed"])
    new = predictions.new(artifact)
    return Scored(label, seed, artifact, answers, np.diff(bounds), client, predictions.tuned(artifact), new)


def _paired(scored: list[Scored], baseline: str) -> list[Scored]:
    """Give each its baseline's accuracy by client: that of predictions on the same samples, else of the global part."""
    bases = [item for item in scored if item.label == baseline]
    known = {item.artifact.manifest.request["method"] for item in scored}
    if baseline != "fedavg" and not bases:
        raise UsageError(f"no predictions of the baseline '{baseline}' are given", closest(baseline, known))
    paired = []
    for item in scored:
        twins = [base for base in bases if base.seed == item.seed and _same_samples(base, item)]
        if twins:
            reference = twins[0].client["accuracy"]
        elif "global" in item.answers.parts:
            right = scores.correct(item.answers.parts["global"], item.answers.y)
            reference = scores.per_client(right, item.answers.offsets)
        else:
            reference = None
        paired.append(Scored(**{**item.__dict__, "baseline": reference}))
    return paired


def _same_samples(a: Scored, b: Scored) -> bool:
    return np.array_equal(a.answers.sample, b.answers.sample) and np.array_equal(a.answers.offsets, b.answers.offsets)


def _has_baseline(scored: Sequence[Scored]) -> bool:
    return any(item.baseline is not None for item in scored)


def _method(label: str, items: Sequence[Scored]) -> dict[str, Any]:
    """Return one row: every number with its unit, weighting and n."""
    clients = sum(int((item.n > 0).sum()) for item in items)
    samples = sum(int(item.n.sum()) for item in items)
    metrics: dict[str, Any] = {}

    def put(name: str, unit: str, weighting: str, n: int, values: Sequence[float]) -> None:
        known = [value for value in values if not math.isnan(value)]
        metrics[name] = {
            "value": float(np.mean(known)) if known else math.nan,
            "unit": unit,
            "weighting": weighting,
            "n": n,
            "std_over_seeds": float(np.std(known, ddof=1)) if len(known) > 1 else None,
        }

    accuracies = [item.client["accuracy"] for item in items]
    answers = [(item.answers.parts["p"], item.answers.y) for item in items]
    weighted = [scores.weighted_mean(item.client["accuracy"], item.n) for item in items]
    put("accuracy", "fraction", "clients by samples", clients, weighted)
    put("accuracy_mean", "fraction", "clients alike", clients, [float(np.nanmean(a)) for a in accuracies])
    put("bottom_decile", "fraction", "(m/10)-th worst client", clients, [scores.bottom_decile(a) for a in accuracies])
    put("worst", "fraction", "worst client", clients, [float(np.nanmin(a)) for a in accuracies])
    put("accuracy_std", "fraction", "clients alike", clients, [float(np.nanstd(a)) for a in accuracies])
    put(
        "macro_precision",
        "fraction",
        "classes alike, samples pooled",
        samples,
        [scores.macro_precision(*a) for a in answers],
    )
    put(
        "calibration_error",
        "fraction",
        "samples pooled, 15 bins",
        samples,
        [scores.calibration_error(*a) for a in answers],
    )
    put("log_loss", "nats", "samples pooled", samples, [float(np.mean(scores.log_loss(*a))) for a in answers])
    if all(item.baseline is not None for item in items):
        gains = [(item.client["accuracy"] - item.baseline, item.n.astype(float)) for item in items]  # type: ignore[operator]
        gains = [(gain[n > 0], n[n > 0]) for gain, n in gains]
        put("gain", "fraction", "clients by samples", clients, [scores.weighted_mean(*gain) for gain in gains])
        if any(np.any(gain) for gain, _ in gains):
            draw = rng.generator(0, "bootstrap", label)
            metrics["gain"]["interval"] = scores.bootstrap_gain(gains, DRAWS, draw)
        put("better_off", "fraction", "clients alike", clients, [float((gain > 0).mean()) for gain, _ in gains])
        put("worse_off", "fraction", "clients alike", clients, [float((gain < 0).mean()) for gain, _ in gains])
    for group, chosen in _seen_and_unseen(items).items():
        count = sum(int((n > 0).sum()) for _, n in chosen)
        put(f"accuracy_{group}", "fraction", "clients by samples", count, [scores.weighted_mean(*c) for c in chosen])
        worst = [scores.bottom_decile(accuracy) for accuracy, _ in chosen]
        put(f"bottom_decile_{group}", "fraction", "(m/10)-th worst client", count, worst)
    facts = [item.artifact.manifest for item in items]
    for link in ("up", "down", "peer"):
        put(f"bytes_{link}", "bytes", "total of a run", len(items), [f.summary[f"bytes_{link}"] for f in facts])
    total = [sum(fact.summary[f"bytes_{link}"] for link in ("up", "down", "peer")) / 1e6 for fact in facts]
    put("megabytes", "MB", "total of a run, all links", len(items), total)
    if all("model_bytes" in fact.summary for fact in facts):
        moved = [1e6 * sent * reaching.exchange(item.artifact) for sent, item in zip(total, items, strict=True)]
        put("exchanges", reaching.UNITS["exchanges_to_target"], "total of a run, all links", len(items), moved)
    spent = [fact.made["seconds"] + fact.made.get("seconds_inputs", 0) for fact in facts]
    put("seconds", "seconds", "a run, with the artifacts it needs", len(items), spent)
    return {
        "label": label,
        "method": facts[0].request["method"],
        "seeds": [item.seed for item in items],
        "metrics": metrics,
    }


def _seen_and_unseen(items: Sequence[Scored]) -> dict[str, list[tuple[NDArray[Any], NDArray[Any]]]]:
    """Return accuracies and sizes of clients that could train the global model and of those that joined later."""
    groups = {"seen": False, "unseen": True} if all(item.new is not None for item in items) else {}
    return {
        group: [(item.client["accuracy"][item.new == late], item.n[item.new == late]) for item in items]
        for group, late in groups.items()
    }


def _table(scored: Sequence[Scored], split: str) -> bytes:
    tuned = sorted({name for item in scored for name in item.tuned})
    late = any(item.new is not None for item in scored)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    heading = ["method", "seed", "client", f"n_{split}", *_PER_CLIENT, "baseline_accuracy", "gain", *tuned]
    writer.writerow(heading + ["unseen"] * late)
    for item in scored:
        for client in range(len(item.n)):
            values: list[Any] = [item.client[name][client] for name in _PER_CLIENT]
            base = math.nan if item.baseline is None else item.baseline[client]
            values += [base, item.client["accuracy"][client] - base]
            values += [item.tuned[name][client] if name in item.tuned else math.nan for name in tuned]
            if late:
                values.append(math.nan if item.new is None else float(item.new[client]))
            cells = ["" if math.isnan(value) else f"{value:.6g}" for value in values]
            writer.writerow([item.label, item.seed, client, int(item.n[client]), *cells])
    return text.getvalue().encode()


def _picture(scored: Sequence[Scored], metrics: Mapping[str, Any]) -> bytes:
    groups = _groups(scored)
    counts = {item.seed: len(item.n) for item in scored}

    def joined(found: Mapping[int, NDArray[np.float64]]) -> NDArray[np.float64]:
        # A method that lacks a seed has nothing to show for its clients.
        return np.concatenate([found.get(seed, np.full(counts[seed], np.nan)) for seed in sorted(counts)])

    accuracy = {label: joined({i.seed: i.client["accuracy"] for i in items}) for label, items in groups.items()}
    reference = metrics["baseline"] if len({len(values) for values in accuracy.values()}) == 1 else None
    if reference == "global":
        held = {item.seed: item.baseline for item in scored if item.baseline is not None}
        accuracy = {"global": joined(held), **accuracy}
    seeds = max(len(items) for items in groups.values())
    title = f"Accuracy by client, {metrics['split']} split" + (f", {seeds} seeds" if seeds > 1 else "")
    return pictures.ranked_accuracy(accuracy, reference, title)


def _json(value: Any) -> Any:
    """Return ``value`` with nan as null: JSON has no nan."""
    if isinstance(value, Mapping):
        return {key: _json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value
