"""What only the runs of a comparison have: learning curves, the partition, and relations of clients."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds import predictions, read_labels
from pflcli.artifacts.reader import Artifact
from pflcli.core.datasets import SPLITS
from pflcli.core.tasks import CLASSES
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
class Relation:
    """The clients that each client learns from under a method: ``weights`` (k, k) of pairs, 0 without a relation."""

    method: str
    title: str
    clients: list[str]
    weights: NDArray[np.float64]
    total: int


@dataclass(frozen=True)
class Curve:
    """Measured rounds and their mean validation accuracy over seeds: of personal models, or of the global one."""

    points: list[tuple[int, float]]
    is_personal: bool


@dataclass(frozen=True)
class Runs:
    """What a page takes from the runs of a comparison; empty if they no longer exist."""

    curves: dict[str, Curve] = field(default_factory=dict)
    """by method"""
    validation_samples: int = 0
    """the number of different samples on which curves are measured; 0 if it is unknown"""
    holdings: Holdings | None = None
    relations: tuple[Relation, ...] = ()
    remarks: tuple[str, ...] = ()
    """sentences on artifacts that no longer exist"""


def read(comparison: Comparison, lineage: Lineage) -> Runs:
    """Read what a page shows of the runs in the lineage; raises InputError if a file of an existing run is damaged."""
    labelled = label_runs(comparison, lineage)
    curves: dict[str, dict[int, list[float]]] = {}
    personal = set[str]()
    for label, _, run in labelled:
        column, points = _read_curve(run, lineage)
        personal |= {label} if column == "personal_accuracy" else set()
        for number, accuracy in points:
            curves.setdefault(label, {}).setdefault(number, []).append(accuracy)
    means = {
        label: Curve(
            _thin_curve([(n, float(np.mean(values))) for n, values in sorted(rounds.items())]), label in personal
        )
        for label, rounds in curves.items()
    }
    first = {label: run for label, seed, run in reversed(labelled)}
    relations = [
        relation
        for label in comparison.methods
        if label in first and (relation := _read_relation(label, first[label], comparison)) is not None
    ]
    partition = next((item for item in lineage.artifacts if item.kind == "partition"), None)
    remarks = []
    # The dataset is not needed: the partition has a copy of its samples.
    kinds = sorted({item.kind for item in lineage.missing} - {"dataset"})
    if kinds:
        remarks.append(
            f"artifacts of this comparison no longer exist ({', '.join(kinds)}): charts that need them (learning "
            "curves, the partition, neighbours) are missing"
        )
    return Runs(
        {label: means[label] for label in comparison.methods if label in means},
        sum(_count_validation_samples(item) for item in lineage.artifacts if item.kind == "partition"),
        None if partition is None else _read_holdings(partition, comparison),
        tuple(relations),
        tuple(remarks),
    )


def label_runs(comparison: Comparison, lineage: Lineage) -> list[tuple[str, int, Artifact]]:
    """Return label, seed and predictions of each existing run."""
    existing = {item.manifest.fingerprint: item for item in lineage.artifacts}
    labelled = []
    for reference in comparison.artifact.manifest.inputs:
        run = existing.get(reference.fingerprint)
        if run is None or run.kind != "predictions":
            continue
        seed = int(run.manifest.request["seed"])
        label = _find_row(reference.role, str(run.manifest.request["method"]), comparison)
        if label is not None:
            labelled.append((label, seed, run))
    return labelled


def _find_row(role: str, method: str, comparison: Comparison) -> str | None:
    """Return the row of the table that a run belongs to: recorded by a comparison, else the only row of its method."""
    label = role.rpartition(", seed ")[0]
    if label in comparison.methods:
        return label
    rows = [row["label"] for row in comparison.rows if row.get("method", row["label"]) == method]
    return rows[0] if len(rows) == 1 else None


def _count_validation_samples(partition: Artifact) -> int:
    """Return the number of validation samples of the clients that take part in rounds."""
    sizes, new = partitions.read_sizes(partition)[:, SPLITS.index("validation")], partitions.read_new_clients(partition)
    return int(sizes.sum() if new is None else sizes[~new].sum())


def _read_curve(run: Artifact, lineage: Lineage) -> tuple[str, list[tuple[int, float]]]:
    """Return a column of ``rounds.csv`` and its measured rounds: that of personal models if it was measured.

    Otherwise it is that of the global model. There is none if scores are no accuracies.
    """
    source = rounds_source(run, lineage)
    has_accuracy = read_labels(run.manifest, 0).kind == CLASSES
    if not has_accuracy or source is None or "rounds.csv" not in source.manifest.files:
        return "", []
    rows = source.table("rounds.csv")
    with source.parsing("rounds.csv"):
        for column in ("personal_accuracy", "validation_accuracy"):
            points = [(int(row["round"]), float(row[column])) for row in rows if row.get(column)]
            if points:
                return column, points
    return "", []


def rounds_source(run: Artifact, lineage: Lineage) -> Artifact | None:
    """Return the artifact with the rounds of a run: itself, or the backbone of FedAvg; None if it has none.

    A method that adapts after the rounds has none.
    """
    if "rounds.csv" in run.manifest.files:
        return run
    return lineage.nearest(run, "backbone") if run.manifest.request["method"] == "fedavg" else None


def _thin_curve(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    places = np.linspace(0, len(points) - 1, min(len(points), _MAX_POINTS)).round().astype(int)
    return [points[place] for place in dict.fromkeys(places.tolist())]


def _read_holdings(artifact: Artifact, comparison: Comparison) -> Holdings | None:
    """Return the classes of a partition's clients, in the order of the other pictures where they are known there.

    None if labels are not classes.
    """
    partition, book = partitions.read(artifact), codebook.read(artifact)
    if partition.labels.kind != CLASSES:
        return None
    counts, clients = partition.label_counts, comparison.clients
    place = _number_clients(comparison, comparison.seeds[0])
    if any(number >= len(counts) for number in place):  # the comparison has clients of another partition
        place = {}
    order = [*place, *(number for number in range(len(counts)) if number not in place)]
    most = max(1, min(MAX_DRAWN, _MAX_FIELDS // max(counts.shape[1], 1)))
    drawn = [order[i] for i in np.linspace(0, len(order) - 1, min(len(order), most)).round().astype(int)]
    all_names = book.client_names(len(counts))
    names = [
        clients.names[place[number]] if number in place else vega.escape_name(all_names[number]) for number in drawn
    ]
    classes = [vega.escape_name(name) for name in book.class_names(counts.shape[1])]
    return Holdings(names, classes, counts[drawn], len(counts))


_STATES = {"attention/first": "attention", "graph": "neighbours", "cluster": "cluster"}
"""Arrays of a state that describe relations, and their names here; the first that is stored is drawn."""


def _read_relation(label: str, run: Artifact, comparison: Comparison) -> Relation | None:
    """Return the relation of clients in the last state of a run, or None if the state has none."""
    clients = int(run.manifest.summary["clients"] or 0)
    if "state.safetensors" not in run.manifest.files:
        return None
    key, state = next(iter(predictions.read_state(run, [(key,) for key in _STATES]).items()), ("", np.empty(0)))
    if not len(state):
        return None
    if key == "attention/first":
        weights = np.nan_to_num(client_relations.select_last_round(state, state.sum(axis=2) > 0))
    elif key == "graph":
        weights = client_relations.unpack_graph(state[-1], clients).astype(np.float64)
    else:
        weights = (client_relations.share_cluster(state) & (state >= 0)).astype(np.float64)
    if weights.shape != (clients, clients):
        return None
    place = _number_clients(comparison, int(run.manifest.request["seed"]))
    order = [number for number in place if number < clients]
    order += [number for number in range(clients) if number not in place]
    if clients > _MAX_RELATED:  # those with a relation: a few clients of many may have taken part last
        order = [number for number in order if weights[number].any() or weights[:, number].any()] or order
    drawn = [order[i] for i in np.linspace(0, len(order) - 1, min(len(order), _MAX_RELATED)).round().astype(int)]
    names = [comparison.clients.names[place[n]] if n in place else f"client {n}" for n in drawn]
    return Relation(label, _STATES[key], names, weights[np.ix_(drawn, drawn)], clients)


def _number_clients(comparison: Comparison, seed: int) -> dict[int, int]:
    """Return the client by its number under ``seed``, in the order of the charts.

    Clients that are the same under every seed have the numbers of the first seed.
    """
    keys, order = comparison.clients.keys, comparison.clients.order.tolist()
    numbers = {keys[client][1]: client for client in order if keys[client][0] == seed}
    return numbers or {keys[client][1]: client for client in order if keys[client][0] == comparison.seeds[0]}
