"""What the runs of a comparison add to its page, where they still exist: curves, partition, who learns from whom."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import codebook
from pflcli.artifacts.kinds import partition as partitions
from pflcli.artifacts.kinds import predictions
from pflcli.artifacts.reader import Artifact
from pflcli.evaluation.charts import vega
from pflcli.evaluation.metrics import neighbourhood
from pflcli.evaluation.metrics.attention import select_last_round
from pflcli.evaluation.page.content import MOST, Content
from pflcli.evaluation.page.lineage import Lineage

_POINTS = 100
"""Measured rounds that are drawn of a curve."""
_FIELDS = 6000
"""Fields that are drawn of a partition's clients and classes."""
_RELATED = 100
"""Clients that are drawn of a matrix."""


@dataclass(frozen=True)
class Holdings:
    """The samples of some clients by class, of one partition."""

    clients: list[str]
    classes: list[str]
    counts: NDArray[np.int64]
    total: int
    """how many clients there are in all"""


@dataclass(frozen=True)
class Relation:
    """From whom each client learns, by one method: a weight for each pair of ``clients``, 0 where there is none."""

    method: str
    title: str
    clients: list[str]
    weights: NDArray[np.float64]
    total: int


@dataclass(frozen=True)
class Runs:
    """What runs add; empty where they are gone."""

    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """by method, rounds and the mean validation accuracy over seeds after each"""
    holdings: Holdings | None = None
    relations: tuple[Relation, ...] = ()
    remarks: tuple[str, ...] = ()
    """what is missing, and why"""


def read(content: Content, lineage: Lineage) -> Runs:
    """Return what the runs in the lineage add; raises InputError if a file of one that exists is damaged."""
    labelled = _labelled(content, lineage)
    curves: dict[str, dict[int, list[float]]] = {}
    for label, _, run in labelled:
        for number, accuracy in _curve(run, lineage):
            curves.setdefault(label, {}).setdefault(number, []).append(accuracy)
    means = {
        label: _thinned([(n, float(np.mean(values))) for n, values in sorted(rounds.items())])
        for label, rounds in curves.items()
    }
    first = {label: run for label, seed, run in reversed(labelled)}
    relations = [
        relation
        for label in content.methods
        if label in first and (relation := _relation(label, first[label], content)) is not None
    ]
    partition = next((item for item in lineage.artifacts if item.kind == "partition"), None)
    remarks = []
    # A partition has a copy of its dataset.
    kinds = sorted({item.kind for item in lineage.missing} - {"dataset"})
    if kinds:
        remarks.append(
            f"{' and '.join(kinds)} of this comparison do not exist any more where they were: what only they hold "
            "(learning curves, the partition, neighbours) is not drawn"
        )
    return Runs(
        {label: means[label] for label in content.methods if label in means},
        None if partition is None else _holdings(partition, content),
        tuple(relations),
        tuple(remarks),
    )


def _labelled(content: Content, lineage: Lineage) -> list[tuple[str, int, Artifact]]:
    """Return label, seed and predictions of each run that exists."""
    existing = {item.manifest.fingerprint: item for item in lineage.artifacts}
    labelled = []
    for reference in content.artifact.manifest.inputs:
        run = existing.get(reference.fingerprint)
        if run is None or run.kind != "predictions":
            continue
        seed = int(run.manifest.request["seed"])
        label = _label(reference.role, str(run.manifest.request["method"]), content)
        if label is not None:
            labelled.append((label, seed, run))
    return labelled


def _label(role: str, method: str, content: Content) -> str | None:
    """Return the row of the table that a run belongs to: a comparison says it, otherwise the only row of its method."""
    label = role.rpartition(", seed ")[0]
    if label in content.methods:
        return label
    rows = [row["label"] for row in content.rows if row.get("method", row["label"]) == method]
    return rows[0] if len(rows) == 1 else None


def _curve(run: Artifact, lineage: Lineage) -> list[tuple[int, float]]:
    """Return the measured rounds of a run: of clients' own models if it has them, otherwise of the global model."""
    source: Artifact | None = run
    if "rounds.csv" not in run.manifest.files:
        # FedAvg's rounds are those of its backbone; whoever adapts after them has none of its own.
        source = lineage.nearest(run, "backbone") if run.manifest.request["method"] == "fedavg" else None
    if source is None or "rounds.csv" not in source.manifest.files:
        return []
    rows = source.table("rounds.csv")
    with source.parsing("rounds.csv"):
        for column in ("personal_accuracy", "validation_accuracy"):
            points = [(int(row["round"]), float(row[column])) for row in rows if row.get(column)]
            if points:
                return points
    return []


def _thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    places = np.linspace(0, len(points) - 1, min(len(points), _POINTS)).round().astype(int)
    return [points[place] for place in dict.fromkeys(places.tolist())]


def _holdings(artifact: Artifact, content: Content) -> Holdings:
    """Return the classes of a partition's clients, in the order of the other pictures where they are known there."""
    partition, book = partitions.read(artifact), codebook.read(artifact)
    counts, clients = partition.label_counts, content.clients
    place = _by_number(content, content.seeds[0])
    if any(number >= len(counts) for number in place):  # the clients drawn are of another partition
        place = {}
    order = [*place, *(number for number in range(len(counts)) if number not in place)]
    most = max(1, min(MOST, _FIELDS // max(counts.shape[1], 1)))
    drawn = [order[i] for i in np.linspace(0, len(order) - 1, min(len(order), most)).round().astype(int)]
    all_names = book.client_names(len(counts))
    names = [clients.names[place[number]] if number in place else vega.text(all_names[number]) for number in drawn]
    classes = [vega.text(name) for name in book.class_names(counts.shape[1])]
    return Holdings(names, classes, counts[drawn], len(counts))


_STATES = {"attention/first": "attention", "graph": "neighbours", "cluster": "cluster"}
"""What a state holds of relations, and how it is called; the first that is there is drawn."""


def _relation(label: str, run: Artifact, content: Content) -> Relation | None:
    """Return from whom clients learned by a method, as its last state says, or None if it keeps nothing of it."""
    clients = int(run.manifest.summary["clients"] or 0)
    if "state.safetensors" not in run.manifest.files:
        return None
    key, state = next(iter(predictions.state(run, [(key,) for key in _STATES]).items()), ("", np.empty(0)))
    if not len(state):
        return None
    if key == "attention/first":
        weights = np.nan_to_num(select_last_round(state, state.sum(axis=2) > 0))
    elif key == "graph":
        weights = neighbourhood.unpack_graph(state[-1], clients).astype(np.float64)
    else:
        weights = (neighbourhood.share_cluster(state) & (state >= 0)).astype(np.float64)
    if weights.shape != (clients, clients):
        return None
    place = _by_number(content, int(run.manifest.request["seed"]))
    order = [number for number in place if number < clients]
    order += [number for number in range(clients) if number not in place]
    drawn = [order[i] for i in np.linspace(0, clients - 1, min(clients, _RELATED)).round().astype(int)]
    names = [content.clients.names[place[n]] if n in place else f"client {n}" for n in drawn]
    return Relation(label, _STATES[key], names, weights[np.ix_(drawn, drawn)], clients)


def _by_number(content: Content, seed: int) -> dict[int, int]:
    """Return the client of each number under a ``seed``, in the order of the pictures.

    Clients that are the same under every seed have their numbers from the first.
    """
    keys, order = content.clients.keys, content.clients.order.tolist()
    numbers = {keys[client][1]: client for client in order if keys[client][0] == seed}
    return numbers or {keys[client][1]: client for client in order if keys[client][0] == content.seeds[0]}
