"""Compare clients' neighbours with the true clusters."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


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


def summarize_rounds(
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
