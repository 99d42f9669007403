"""The table of a comparison from results in memory and from predictions on disk alike."""

from __future__ import annotations

import math
import reprlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pflcli.artifacts.client_blocks import offsets
from pflcli.artifacts.kinds import predictions, read_labels
from pflcli.artifacts.open_by_path import open_one
from pflcli.core import tasks
from pflcli.core.errors import InputError, UsageError
from pflcli.core.metrics import catalogue
from pflcli.core.simulation.progress import find_best
from pflcli.core.tasks import Labels
from pflcli.core.wording import WordedInPython, in_python
from pflcli.evaluation import client_identity, convergence, latex, round_costs, scoring, summary
from pflcli.evaluation.presentation import conclusion, notes, tables
from pflcli.evaluation.summary import Scored, ScoredPredictions

if TYPE_CHECKING:
    from pflcli.core.simulation.simulate import Result

    Source: TypeAlias = Result | Path | str

_EXAMPLE = "table({'fedavg': simulate('fedavg', federation), 'local': simulate('local', federation)})"


class Table(pd.DataFrame):
    """The table of a comparison. A part of it, or a copy, is a frame like any other."""

    _metadata = ("_metrics",)
    _metrics: dict[str, Any]

    def latex(self, label: str = "methods") -> str:
        """Return the table for a paper, in LaTeX with booktabs, as ``pfl show --latex`` prints it.

        Methods have the names of their papers; the best one is bold, and a dagger marks those not shown to be worse.
        """
        return latex.render_metrics(self._metrics, label)


@dataclass(frozen=True)
class Compared:
    """Scored results: the content of ``metrics.json``, the runs of each method, and who their clients (m,) are."""

    metrics: dict[str, Any]
    groups: dict[str, list[ScoredPredictions]]
    """by label, best method first"""
    identities: dict[str, dict[int, NDArray[np.str_]]]
    """by label and seed"""


@WordedInPython()
def table(
    results: Mapping[str, Source | Sequence[Source]],
    *,
    baseline: str = "fedavg",
    split: str = "test",
    metric: str | Sequence[str] | None = None,
) -> Table:
    """Return the table of a comparison as a frame, best method first: scores, gains over the baseline, and intervals.

    ``results`` has, for each label, the result of ``simulate``, or the path of predictions, or a sequence of these, one
    per seed. Columns are those of ``table.csv`` in a comparison of ``pfl compare``, with the same numbers; unknown ones
    are nan. ``metric`` are names of metrics, the first of which ranks; by default that of the task, such as accuracy.

    The attributes (``attrs``) of the frame have the ``conclusion``, sentences of which the first is the decision, and
    ``notes``; warnings among these are Python warnings too. Its ``latex()`` is the table for a paper.

    Raises UsageError for an unknown baseline or metric, for a label without a result or with two of one seed, for an
    object without predictions, and for results of different clients, splits or seeds; InputError without samples of the
    ``split``.

    >>> from pflcli import Federation, simulate, table
    >>> writers = Federation.from_dataset("writers", clients=6)
    >>> names = ("fedavg", "local", "ditto")
    >>> frame = table({name: simulate(name, writers, model="logistic", rounds=2, quiet=True) for name in names})
    >>> sorted(frame.index), "accuracy" in frame.columns
    (['ditto', 'fedavg', 'local'], True)
    """
    metrics = compare_results(results, baseline, split, metric).metrics
    columns = [entry.name for entry in catalogue.prediction_metrics(tuple(metrics["metric"]))]
    heading, body = tables.list_numbers(metrics, [*columns, "gain", "better_off", "worse_off", "megabytes"])
    frame = pd.DataFrame(body, columns=heading).set_index("method")
    shown = Table(frame.astype(float, errors="ignore").replace({None: math.nan}).astype({"seeds": int}))
    shown.attrs = {"conclusion": conclusion.Conclusion.read(metrics).sentences, "notes": notes.list_notes(metrics)}
    shown._metrics = scoring.replace_nonfinite(metrics)
    for line in metrics["warnings"]:
        warnings.warn(in_python(line), stacklevel=3)
    return shown


def compare_results(
    results: Mapping[str, Source | Sequence[Source]],
    baseline: str = "fedavg",
    split: str = "test",
    metric: str | Sequence[str] | None = None,
) -> Compared:
    """Score and judge results; ``table`` documents the arguments and errors."""
    if not isinstance(results, Mapping):
        raise UsageError(f"results is a {type(results).__name__}, not a mapping with a label for each method", _EXAMPLE)
    if not results:
        raise UsageError("there is no result to compare", _EXAMPLE)
    for name, value in (("baseline", baseline), ("split", split)):
        if not isinstance(value, str):
            raise UsageError(f"{name} is {value!r}, not a word", f"table(results, {name}='fedavg')")
    names = _parse_metrics(_propose_metric(results) if metric is None else metric)
    runs, owners, megabytes = [], dict[tuple[str, int], Any](), dict[str, list[float]]()
    for label, sources in results.items():
        if not isinstance(label, str):
            raise UsageError(f"the label {label!r} is not a word", _EXAMPLE)
        found = list_sources(sources)
        if not found:
            raise UsageError(f"{label} has no result", "one result per seed")
        for source in found:
            item, read, sent = _read_run(source, label, split, names)
            if (label, item.seed) in owners:
                raise UsageError(f"{label} has two results with seed {item.seed}", "one result per seed")
            owners[label, item.seed] = source
            runs.append((item, read))
            megabytes.setdefault(label, []).append(sent / 1e6)
    paired = scoring.add_records(runs, baseline)
    groups = {label: [item for item in paired if item.label == label] for label in megabytes}
    _require_comparable(groups)
    identities = {
        label: {item.seed: _identify(owners[label, item.seed], item) for item in items}
        for label, items in groups.items()
    }
    rows = [summary.summarize_scores(label, items, identities[label]) for label, items in groups.items()]
    for row in rows:
        row["metrics"].add("megabytes", len(row["seeds"]), megabytes[row["label"]])
    known = baseline if baseline in groups else "global" if scoring.has_baseline(paired) else None
    made = {"split": split, "metric": [*names], "baseline": known, "methods": rows, "in_memory": True}
    metrics = scoring.judge(made, groups, identities)
    return Compared(metrics, {row["label"]: groups[row["label"]] for row in metrics["methods"]}, identities)


def list_sources(sources: Source | Sequence[Source]) -> Sequence[Source]:
    """Return the results of one label."""
    return sources if isinstance(sources, Sequence) and not isinstance(sources, str) else [sources]


def _propose_metric(results: Mapping[str, Source | Sequence[Source]]) -> str:
    """Return the metric that ranks methods of the first result's task."""
    given = (each for group in results.values() for each in list_sources(group))
    first = next(given, None)
    if isinstance(first, str | Path):
        return tasks.find(read_labels(open_one(first, "predictions").manifest, 0).kind).metrics[0]
    return tasks.find(
        first.federation.task.kind if first is not None and hasattr(first, "federation") else tasks.CLASSES
    ).metrics[0]


def _parse_metrics(metric: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of metrics; raises UsageError for one that is unknown or no name."""
    chosen = [metric] if isinstance(metric, str) or not isinstance(metric, Iterable) else [*metric]
    if not all(isinstance(name, str) for name in chosen):
        raise UsageError(f"metric is {metric!r}, not the name of a metric", "table(results, metric='accuracy')")
    return catalogue.parse_names(chosen)


def _require_comparable(groups: Mapping[str, Sequence[ScoredPredictions]]) -> None:
    """Raise UsageError unless all methods have the same seeds and, under each, the same clients and samples."""
    first, *others = groups.values()
    expected = {item.seed: item for item in first}
    for items in others:
        seeds = {item.seed for item in items}
        if seeds != {*expected}:
            one, two = (", ".join(map(str, sorted(each))) for each in (expected, seeds))
            raise UsageError(
                f"{first[0].label} has results of seed {one}, and {items[0].label} of seed {two}",
                "give results of the same seeds for every method",
            )
        for item in items:
            other = expected[item.seed]
            pair = f"{other.label} and {item.label}, seed {item.seed},"
            known = [[*each.names] for each in (other, item) if each.names is not None]
            if len(item.n) != len(other.n) or known[1:] not in ([], known[:1]):
                raise UsageError(f"{pair} have different clients", "simulate every method on the same federation")
            if not np.array_equal(item.samples, other.samples):
                raise UsageError(
                    f"{pair} were scored on different samples: their federations have different splits",
                    "simulate every method on the same federation",
                )


def _read_run(
    source: Source, label: str, split: str, metrics: tuple[str, ...]
) -> tuple[ScoredPredictions, Callable[[], predictions.SplitPredictions], float]:
    """Return a run without records, a function that reads its predictions, and the bytes that were sent."""
    if isinstance(source, (str, Path)):
        artifact = open_one(source, "predictions")
        stored = scoring.describe_run(artifact, label, split, metrics)
        later = round_costs.measure_later(artifact)
        sent = sum(artifact.manifest.summary[link] - later[link] for link in round_costs.LINKS)
        return stored, partial(predictions.read, artifact, split), sent
    if not hasattr(source, "predictions"):
        raise UsageError(
            f"{label} is {reprlib.repr(source)}, which has no predictions",
            "give a result of simulate, or the path of predictions",
        )
    found, federation = source.predictions.get(split), source.federation
    if found is None:
        raise InputError(f"{label} has no {split} predictions", f"choose from: {', '.join(source.predictions)}")
    if not len(found.y):
        raise InputError(f"{label} has no {split} samples to score")
    labels = Labels.of(federation.task)
    catalogue.require_defined(metrics, labels)
    curve, losses = _read_progress(source)
    known = source.method in conclusion.ALONE and "validation" in source.predictions
    item = ScoredPredictions(
        label=label,
        method=source.method,
        seed=source.seed,
        names=None if client_identity.are_numbered(federation.names) else federation.names,
        class_names=federation.class_names or [*map(str, range(found.p.shape[1]))],
        learned_from=("train", "validation") if source.settings.refit else ("train",),
        is_transductive=bool(source._method.TRANSDUCTIVE),
        is_reference=scoring.is_reference(source.method),
        curve=curve,
        validation_samples=len(source.predictions["validation"].y) if "validation" in source.predictions else 0,
        validation=scoring.score_validation(_read_split(source, "validation"), metrics, labels) if known else math.nan,
        losses=losses,
        is_stopped=convergence.is_stopped(vars(source.settings), max(curve[0], default=0)),
        metric_names=metrics,
        labels=labels,
        tuned=source.tuned,
        new=federation.new,
    )
    return item, partial(_read_split, source, split), _count_bytes(source)


def _count_bytes(result: Result) -> int:
    """Return the bytes that were sent up to the reported round, as on disk, with those of the backbone."""
    before = 0 if result.backbone is None else _count_bytes(result.backbone)
    best = find_reported(result)
    later = [] if best is None else list_rows(result)[best + 1 :]
    spare = sum(int(row[f"bytes_{link}"]) for row in later for link in result.run.traffic)
    return before + sum(result.run.traffic.values()) - spare


def find_reported(result: Result) -> int | None:
    """Return the place of the reported round among the rows of ``rounds.csv``; None if it is the last one."""
    settings = result.settings
    best = find_best(list_rows(result), settings.compares_rounds_by) if settings.report == "best" else None
    return None if best is None else best.best


def list_rows(result: Result) -> list[dict[str, Any]]:
    """Return the rows of ``rounds.csv``."""
    return [{str(name): value for name, value in row.items()} for row in result.rounds.reset_index().to_dict("records")]


def _read_split(result: Result, split: str) -> predictions.SplitPredictions:
    """Return the predictions of a result on a split in the form of those on disk."""
    found = result.predictions[split]
    sizes = np.bincount(found.client, minlength=len(result.federation.clients))
    sample = _sample_ids(result, split, len(found.y))
    return predictions.SplitPredictions(dict(found.parts), found.y, sample, offsets(sizes.tolist()))


def _read_progress(result: Result) -> tuple[tuple[list[int], list[float]], list[float]]:
    """Return the measured rounds of a result with their validation accuracies, and the training loss of each round.

    They are those of its backbone if it has no rounds of its own, as on disk.
    """
    if result.federation.task.score != "accuracy":
        return ([], []), []
    source = result if len(result.rounds) or result.backbone is None else result.backbone
    rows = list_rows(source)
    personal = convergence.select_measured(rows, "personal_accuracy")
    curve = personal if source is result and personal[0] else convergence.select_measured(rows, "validation_accuracy")
    return curve, convergence.select_measured(rows, "loss")[1]


def _sample_ids(result: Result, split: str, count: int) -> NDArray[np.int64]:
    """Return the rows (n,) of the predicted samples in the arrays or dataset, if they are known."""
    if result.federation.sample is None:
        return np.arange(count)
    return result.federation.sample[result.run.federation.rows_of(result.run.clients, split)]


def _identify(source: Any, item: ScoredPredictions) -> NDArray[np.str_]:
    """Return who each client (m,) of a run is: its name in the data, else its number in its partition or federation."""
    if isinstance(item, Scored):
        return summary.identify_clients([item])[item.seed]
    federation = source.federation
    return np.asarray(item.names or [f"{id(federation)}/{client}" for client in federation.clients])
