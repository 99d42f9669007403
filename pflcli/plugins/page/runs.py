"""What only the runs of a comparison have: learning curves, the partition, and relations of clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds import predictions, read_labels
from pflcli.artifacts.reader import Artifact
from pflcli.core import scores
from pflcli.core.datasets import SPLITS
from pflcli.core.engine.tasks import Task
from pflcli.core.errors import GoneError, UsageError
from pflcli.core.tasks import CLASSES
from pflcli.evaluation import lineage as lineages
from pflcli.evaluation import round_costs
from pflcli.evaluation.charts import vega
from pflcli.evaluation.lineage import Lineage
from pflcli.evaluation.metrics import client_relations
from pflcli.evaluation.stored_comparison import MAX_DRAWN, Comparison

_MAX_POINTS = 100
"""Greatest number of points of a curve."""
_MAX_FIELDS = 6000
"""Greatest number of fields (clients times classes) in the chart of a partition."""
_MAX_RELATED = 100
"""Greatest number of clients in a matrix."""


@dataclass(frozen=True)
class Holdings:
    """Numbers of samples of some clients of a partition, by class."""

    clients: list[str]
    classes: list[str]
    counts: NDArray[np.int64]
    total: int
    """number of all clients"""


@dataclass(frozen=True)
class Numbers:
    """The labels of some clients of a partition, if they are numbers."""

    clients: list[str]
    labels: list[NDArray[Any]]
    unit: str
    total: int
    """number of all clients"""


@dataclass(frozen=True)
class Answers:
    """The test predictions ``p`` (n,) of a method, with labels ``y`` and names of ``clients`` (n,).

    ``place`` (n,), from 0 to 1, is where a sample is among those of its client, in time if samples are in time.
    """

    method: str
    clients: list[str]
    y: NDArray[np.float64]
    p: NDArray[np.float64]
    place: NDArray[np.float64]


@dataclass(frozen=True)
class Relation:
    """The clients that each client learns from under a method: ``weights`` (k, k) of pairs, 0 without a relation."""

    method: str
    title: str
    clients: list[str]
    weights: NDArray[np.float64]
    total: int


@dataclass(frozen=True)
class Point:
    """What a method has reached after a round and what it took, means over seeds; nan where unknown."""

    round: float
    accuracy: float
    """on validation samples: of personal models if the method measured it, else of the global model"""
    test: float
    """the same on test samples"""
    megabytes: float
    """sent up to the round, over all links"""
    seconds: float
    """that the mean clients of the rounds have computed, each on one core"""


@dataclass(frozen=True)
class Curve:
    """The measured rounds that a method played under every seed, and its ``end``, the round that it reports."""

    points: list[Point]
    end: Point


@dataclass(frozen=True)
class Runs:
    """What a page takes from the runs of a comparison; empty if they no longer exist."""

    curves: dict[str, Curve] = field(default_factory=dict)
    """by method"""
    validation_samples: int = 0
    """the number of different samples on which curves are measured; 0 if it is unknown"""
    holdings: Holdings | None = None
    labels: Numbers | None = None
    """those of the partition, if they are numbers"""
    answers: tuple[Answers, ...] = ()
    """predictions of numbers, by the first run of each method"""
    relations: tuple[Relation, ...] = ()
    remarks: tuple[str, ...] = ()
    """sentences on artifacts that no longer exist"""


def read(comparison: Comparison, lineage: Lineage) -> Runs:
    """Read what a page shows of the runs in the lineage; raises InputError if a file of an existing run is damaged."""
    labelled = lineages.label_runs(comparison, lineage)
    by_label: dict[str, list[tuple[list[Point], Point]]] = {}
    for label, _, run in labelled:
        if (curve := read_curve(run)) is not None:
            by_label.setdefault(label, []).append(curve)
    first = {label: run for label, seed, run in reversed(labelled)}
    relations = [
        relation
        for label in comparison.methods
        if label in first and (relation := _read_relation(label, first[label], comparison)) is not None
    ]
    partitioned = [item for item in lineage.artifacts if item.kind == "partition"]
    partition = next(iter(partitioned), None)
    remarks = []
    # The dataset is not needed: the partition has a copy of its samples.
    kinds = sorted({item.kind for item in lineage.missing} - {"dataset"})
    if kinds:
        remarks.append(
            f"artifacts of this comparison no longer exist ({', '.join(kinds)}): charts that need them (learning "
            "curves, the partition, neighbours) are missing"
        )
    return Runs(
        {label: average(by_label[label]) for label in comparison.methods if label in by_label},
        sum(_count_validation_samples(item) for item in partitioned),
        None if partition is None else _read_holdings(partition, comparison),
        None if partition is None else _read_numbers(partition, comparison),
        tuple(
            each
            for label in comparison.methods
            if label in first
            for each in _read_answers(label, first[label], comparison)
        ),
        tuple(relations),
        tuple(remarks),
    )


def _count_validation_samples(partition: Artifact) -> int:
    """Return the number of validation samples of the clients that take part in rounds."""
    sizes, new = partitions.read_sizes(partition)[:, SPLITS.index("validation")], partitions.read_new_clients(partition)
    return int(sizes.sum() if new is None else sizes[~new].sum())


def read_curve(run: Artifact) -> tuple[list[Point], Point] | None:
    """Return the measured rounds of a run, and the round that it reports; None if scores are no accuracies."""
    if read_labels(run.manifest, 0).kind != CLASSES:
        return None
    try:
        (column, rows), source = round_costs.read_rounds(run), round_costs.find_rounds(run)
    except GoneError:
        (column, rows), source = ("", []), None
    summary = run.manifest.summary
    total = _count_bytes(summary)
    return trace_curve(
        column,
        rows,
        total,
        1 if source is None else round_costs.count_workers(source),
        summary.get("reported_round"),
        is_known=column == "personal_accuracy" or not round_costs.adapts(run.manifest.request["method"]),
        sent=math.nan if summary.get("foreign") else total / 1e6,  # another tool has not said what it sent
        score=lambda split: _score(run, split),
    )


def trace_curve(
    column: str,
    rows: Sequence[Mapping[str, str]],
    total: int,
    workers: int,
    reported: int | None,
    *,
    is_known: bool,
    sent: float,
    score: Callable[[str], float],
) -> tuple[list[Point], Point]:
    """Return the measured rounds of a run, and the round that it reports, by default the last.

    ``rows`` are those of ``rounds.csv``, with accuracies in a ``column``; ``total`` are the bytes of the whole run,
    whose clients ``workers`` trained. Only the end is known of a method on a backbone, and of one that adapts after the
    rounds and did not measure this (``is_known``): what it ``sent``, in megabytes, and its ``score`` on a split.
    """
    points, seconds = list[Point](), 0.0
    before = total - sum(map(_count_bytes, rows))  # beside the rounds, such as for the choices of an earlier run
    for row in rows:
        before += _count_bytes(row)
        seconds += round_costs.compute_seconds(row, workers)
        accuracies = _number(row.get(column)), _number(row.get("test_accuracy"))
        points.append(Point(int(row["round"]), *accuracies, before / 1e6, seconds))
    last = points[-1].round if reported is None and points else reported or 0
    unknown = Point(math.nan, math.nan, math.nan, sent, math.nan)
    end = next((point for point in points if point.round == last > 0), unknown)
    measured = [point for point in points if is_known and not math.isnan(point.accuracy)]
    if end not in measured:
        end = replace(end, accuracy=score("validation"), test=score("test"))
    return measured, end


def _count_bytes(amounts: Mapping[str, Any]) -> int:
    return sum(int(amounts[link]) for link in round_costs.LINKS)


def _number(cell: str | None) -> float:
    """Return the number in a cell of ``rounds.csv``; nan if it is empty."""
    return float(cell) if cell else math.nan


def _score(run: Artifact, split: str) -> float:
    """Return the accuracy of stored predictions on a split, of clients that can take part in rounds; nan if unknown."""
    if not predictions.has_split(run, split):
        return math.nan
    answers, new = predictions.read(run, split), predictions.read_new_clients(run)
    right = scores.correct(answers.parts["p"], answers.y)
    known = right if new is None else right[~np.repeat(new, np.diff(answers.offsets))]
    return float(known.mean()) if len(known) else math.nan


def average(runs: list[tuple[list[Point], Point]]) -> Curve:
    """Return the means over seeds, of rounds that were measured under every seed."""
    by_round = [{point.round: point for point in points} for points, _ in runs]
    shared = sorted(set.intersection(*({*each} for each in by_round)))
    points = [_mean([each[number] for each in by_round]) for number in shared]
    return Curve(_thin_curve(points), _mean([end for _, end in runs]))


def _mean(points: list[Point]) -> Point:
    return Point(*(float(np.mean(values)) for values in zip(*map(astuple, points), strict=True)))


def _thin_curve(points: list[Point]) -> list[Point]:
    places = np.linspace(0, len(points) - 1, min(len(points), _MAX_POINTS)).round().astype(int)
    return [points[place] for place in dict.fromkeys(places.tolist())]


def _read_holdings(artifact: Artifact, comparison: Comparison) -> Holdings | None:
    """Return the classes of a partition's clients, in the order of the other pictures where they are known there.

    None if labels are not classes.
    """
    partition, book = partitions.read(artifact), codebook.read(artifact)
    if partition.labels.kind != CLASSES:
        return None
    counts = partition.label_counts
    return arrange_holdings(counts, book.client_names(len(counts)), book.class_names(counts.shape[1]), comparison)


def arrange_holdings(
    counts: NDArray[np.int64], all_names: Sequence[str], class_names: Sequence[str], comparison: Comparison
) -> Holdings:
    """Return the classes of clients with these ``counts`` (m, C), in the order of the other pictures."""
    clients = comparison.clients
    place = _number_clients(comparison, comparison.seeds[0])
    if any(number >= len(counts) for number in place):  # the comparison has clients of another partition
        place = {}
    order = [*place, *(number for number in range(len(counts)) if number not in place)]
    most = max(1, min(MAX_DRAWN, _MAX_FIELDS // max(counts.shape[1], 1)))
    drawn = [order[i] for i in np.linspace(0, len(order) - 1, min(len(order), most)).round().astype(int)]
    names = [
        clients.names[place[number]] if number in place else vega.escape_name(all_names[number]) for number in drawn
    ]
    classes = [vega.escape_name(name) for name in class_names]
    return Holdings(names, classes, counts[drawn], len(counts))


def _read_numbers(artifact: Artifact, comparison: Comparison) -> Numbers | None:
    """Return the labels of a partition's clients; None if they are classes."""
    if read_labels(artifact.manifest, 0).fields is None:
        return None
    partition, book = partitions.read(artifact), codebook.read(artifact)
    return arrange_numbers(partition.list_labels(), book.client_names(len(partition.names)), book.unit, comparison)


def arrange_numbers(labels: Sequence[NDArray[Any]], names: Sequence[str], unit: str, comparison: Comparison) -> Numbers:
    """Return the ``labels`` of clients with these ``names``, at most ``MAX_DRAWN`` of them."""
    drawn = np.linspace(0, len(labels) - 1, min(len(labels), MAX_DRAWN)).round().astype(int).tolist()
    known = _number_clients(comparison, comparison.seeds[0])
    spelled = [comparison.clients.names[known[at]] if at in known else vega.escape_name(names[at]) for at in drawn]
    return Numbers(spelled, [labels[at] for at in drawn], unit, len(labels))


def _read_answers(label: str, run: Artifact, comparison: Comparison) -> list[Answers]:
    """Return the test predictions of a run, if they are numbers and there are any."""
    labels = read_labels(run.manifest, 0)
    if labels.fields is None or not predictions.has_split(run, "test"):
        return []
    answers, seed = predictions.read(run, "test"), int(run.manifest.request["seed"])
    owner = np.repeat(np.arange(len(answers.offsets) - 1), np.diff(answers.offsets))
    return arrange_answers(label, labels.task(), answers.parts["p"], answers.y, owner, answers.sample, seed, comparison)


def arrange_answers(
    label: str,
    task: Task,
    p: NDArray[Any],
    y: NDArray[Any],
    owner: NDArray[np.int64],
    sample: NDArray[np.int64],
    seed: int,
    comparison: Comparison,
) -> list[Answers]:
    """Return predictions ``p`` (n, C) of labels ``y`` of the clients ``owner``, in the order of ``sample``, (n,) each.

    Empty if the task has no number by which predictions are compared with labels, such as a median.
    """
    if not task.has_intervals:
        return []
    try:
        point = task.point(p)
    except UsageError:
        return []
    known, place = _number_clients(comparison, seed), np.zeros(len(y))
    for client in np.unique(owner).tolist():
        rows = np.flatnonzero(owner == client)
        place[rows[np.argsort(sample[rows], kind="stable")]] = (np.arange(len(rows)) + 0.5) / len(rows)
    names = [comparison.clients.names[known[at]] if at in known else f"client {at}" for at in owner.tolist()]
    return [Answers(label, names, np.asarray(y, np.float64), point, place)]


STATES = {"attention/first": "attention", "graph": "neighbours", "cluster": "cluster"}
"""Arrays of a state that describe relations, and their names here; the first that is stored is drawn."""


def _read_relation(label: str, run: Artifact, comparison: Comparison) -> Relation | None:
    """Return the relation of clients in the last state of a run, or None if the state has none."""
    clients = int(run.manifest.summary["clients"] or 0)
    if "state.safetensors" not in run.manifest.files:
        return None
    key, state = next(iter(predictions.read_state(run, [(key,) for key in STATES]).items()), ("", np.empty(0)))
    return relate(label, key, state, clients, int(run.manifest.request["seed"]), comparison) if len(state) else None


def relate(
    label: str, key: str, state: NDArray[Any], clients: int, seed: int, comparison: Comparison
) -> Relation | None:
    """Return the relation of clients in an array of ``STATES``, or None if it is not of this many clients."""
    if key == "attention/first":
        weights = np.nan_to_num(client_relations.select_last_round(state, state.sum(axis=2) > 0))
    elif key == "graph":
        weights = client_relations.unpack_graph(state[-1], clients).astype(np.float64)
    else:
        weights = (client_relations.share_cluster(state) & (state >= 0)).astype(np.float64)
    if weights.shape != (clients, clients):
        return None
    place = _number_clients(comparison, seed)
    order = [number for number in place if number < clients]
    order += [number for number in range(clients) if number not in place]
    if clients > _MAX_RELATED:  # those with a relation: a few clients of many may have taken part last
        order = [number for number in order if weights[number].any() or weights[:, number].any()] or order
    drawn = [order[i] for i in np.linspace(0, len(order) - 1, min(len(order), _MAX_RELATED)).round().astype(int)]
    names = [comparison.clients.names[place[n]] if n in place else f"client {n}" for n in drawn]
    return Relation(label, STATES[key], names, weights[np.ix_(drawn, drawn)], clients)


def _number_clients(comparison: Comparison, seed: int) -> dict[int, int]:
    """Return the client by its number under ``seed``, in the order of the charts.

    Clients that are the same under every seed have the numbers of the first seed.
    """
    keys, order = comparison.clients.keys, comparison.clients.order.tolist()
    numbers = {keys[client][1]: client for client in order if keys[client][0] == seed}
    return numbers or {keys[client][1]: client for client in order if keys[client][0] == comparison.seeds[0]}
