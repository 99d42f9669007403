"""Whom each client learns from: neighbours against the true clusters, and attention over clients and models.

All functions describe matrices with a row per client and a column per other client. Shapes: m clients, r rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SLOTS = ("own", "attended", "global")
"""The models that the second layer of attention mixes."""


def unpack_graph(packed: Array, clients: int) -> NDArray[np.bool_]:
    """Return the neighbours of each client, (..., m, m) with a row per client.

    ``packed`` (..., m, ceil(m / 8)) is the form that methods store, with eight clients per byte.
    """
    graph: NDArray[np.bool_] = np.unpackbits(packed, axis=-1, count=clients).view(bool)
    return graph


def share_cluster(cluster: Array) -> NDArray[np.bool_]:
    """Return which pairs of clients are in the same cluster, (m, m); False on the diagonal."""
    same: NDArray[np.bool_] = cluster[:, None] == cluster
    np.fill_diagonal(same, False)
    return same


def precision_recall(neighbours: Array, cluster: Array) -> tuple[float, float]:
    """Return precision and recall of ``neighbours`` (m, m) against the true ``cluster`` (m,), means over clients.

    A client's precision is the share of its neighbours that are in its cluster; its recall is the share of the other
    clients in its cluster that are its neighbours. Precision leaves out clients without neighbours, recall clients that
    are alone in their cluster; nan if no client is left. The diagonal of ``neighbours`` is ignored.
    """
    same = share_cluster(cluster)
    neighbours = neighbours & ~np.eye(len(cluster), dtype=bool)
    hits, chosen, others = (np.sum(table, axis=1) for table in (neighbours & same, neighbours, same))
    precision, recall = (hits[n > 0] / n[n > 0] for n in (chosen, others))
    return (
        float(precision.mean()) if len(precision) else math.nan,
        float(recall.mean()) if len(recall) else math.nan,
    )


def summarize_neighbours(
    graphs: Iterable[Array], cluster: Array | None, able: NDArray[np.int64] | None = None, first: int = 1
) -> list[dict[str, float]]:
    """Return a row per round, from ``first`` on: the mean number of neighbours, and precision and recall.

    ``graphs`` has the neighbours (m, m) of each round. Precision and recall are those of ``precision_recall`` for the
    true ``cluster`` (m,), and are left out if it is unknown. Only the clients ``able`` to take part in rounds (ids)
    count. A client that could take part but has not yet done so has no neighbours.
    """
    rows: list[dict[str, float]] = []
    if cluster is not None and able is not None:
        cluster = cluster[able]
    for number, graph in enumerate(graphs, first):
        among_able = graph if able is None or len(able) == len(graph) else graph[np.ix_(able, able)]
        row = {"round": number, "neighbours": float(among_able.sum(axis=1).mean())}
        if cluster is not None:
            row["precision"], row["recall"] = precision_recall(among_able, cluster)
        rows.append(row)
    return rows


def select_last_round(values: Array, active: NDArray[np.bool_]) -> Array:
    """Return the values (m, ...) of each client's last active round from ``values`` (r, m, ...); nan if never active.

    ``active`` (r, m) marks the clients that took part in each of the r rounds.
    """
    last = len(active) - 1 - active[::-1].argmax(axis=0)
    rows: Array = values[last, np.arange(active.shape[1])].astype(np.float64)
    rows[~active.any(axis=0)] = math.nan
    return rows


def summarize_attention(
    first: Array, second: Array, rounds: Sequence[int], cluster: Array | None
) -> list[dict[str, float]]:
    """Return a row for each of the ``rounds`` (r,) of attention ``first`` (r, m, m) and ``second`` (r, m, 3).

    All values are means over the clients that took part (those whose second attention is not 0). ``entropy`` (nats) and
    ``largest`` describe a client's first attention; ``own_group`` is its share on clients of the same true ``cluster``
    (m,). ``..._if_even`` are the values for equal attention to all received models. They leave out clients that
    received no other client's model; nan if no client is left.
    """
    rows: list[dict[str, float]] = []
    for number, others, slots in zip(rounds, first.astype(float), second, strict=True):
        took = slots.sum(axis=1) > 0
        weight = others[others.sum(axis=1) > 0]
        received = (weight > 0).sum(axis=1)
        logs = np.log(weight, out=np.zeros_like(weight), where=weight > 0)
        row = {
            "round": int(number),
            "clients": int(took.sum()),
            **{name: _mean(slots[took, place]) for place, name in enumerate(SLOTS)},
            "largest": _mean(weight.max(axis=1, initial=0)),
            "entropy": _mean(-(weight * logs).sum(axis=1)),
            "entropy_if_even": _mean(np.log(received)),
        }
        if cluster is not None:
            same = share_cluster(cluster)[others.sum(axis=1) > 0]
            row["own_group"] = _mean((weight * same).sum(axis=1))
            row["own_group_if_even"] = _mean(((weight > 0) & same).sum(axis=1) / np.maximum(received, 1))
        rows.append(row)
    return rows


def _mean(values: Array) -> float:
    return float(values.mean()) if len(values) else math.nan


def list_weights(first: Array, second: Array, rounds: Sequence[int], names: Sequence[str]) -> list[list[Any]]:
    """Return a row for every weight above 0: round, client, layer, target and weight.

    The target is the name of another client in layer 1, and one of ``SLOTS`` in layer 2.
    """
    rows: list[list[Any]] = []
    for number, others, slots in zip(rounds, first, second, strict=True):
        for client, name in enumerate(names):
            for layer, weights, targets in ((1, others[client], names), (2, slots[client], SLOTS)):
                rows += [
                    [int(number), name, layer, target, float(weight)]
                    for target, weight in zip(targets, weights, strict=True)
                    if weight > 0
                ]
    return rows
