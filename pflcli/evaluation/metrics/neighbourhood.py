"""How well clients' neighbours match the true clusters."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def adjacency(packed: Array, clients: int) -> NDArray[np.bool_]:
    """Return the neighbours of each client, (..., m, m) with a row per client, from the bits that methods store.

    ``packed`` (..., m, m / 8 rounded up) has eight clients in a byte.
    """
    graph: NDArray[np.bool_] = np.unpackbits(packed, axis=-1, count=clients).view(bool)
    return graph


def together(cluster: Array) -> NDArray[np.bool_]:
    """Return which two clients share a cluster, (m, m); no client shares one with itself."""
    same: NDArray[np.bool_] = cluster[:, None] == cluster
    np.fill_diagonal(same, False)
    return same


def precision_recall(neighbours: Array, cluster: Array) -> tuple[float, float]:
    """Return precision and recall of ``neighbours`` (m, m) against the true ``cluster`` (m,), means over clients.

    A client's precision is the share of its neighbours that are of its cluster, its recall the share of the others of
    its cluster that are its neighbours. Precision leaves out clients without neighbours, recall those that are alone in
    their cluster; nan if no client is left. No client is a neighbour of itself.
    """
    same = together(cluster)
    neighbours = neighbours & ~np.eye(len(cluster), dtype=bool)
    hits, chosen, others = (np.sum(table, axis=1) for table in (neighbours & same, neighbours, same))
    precision, recall = (hits[n > 0] / n[n > 0] for n in (chosen, others))
    return (
        float(precision.mean()) if len(precision) else math.nan,
        float(recall.mean()) if len(recall) else math.nan,
    )


def by_round(
    graphs: Iterable[Array], cluster: Array | None, able: NDArray[np.int64] | None = None, first: int = 1
) -> list[dict[str, float]]:
    """Return a row for each round's neighbours (m, m): their mean number, and how well they match ``cluster`` (m,).

    ``first`` is the number of the first of these rounds.
    Precision and recall are those of ``precision_recall``; they are left out if the true clusters are not known. Only
    the clients ``able`` to take part in a round, a list of ids, count: others neither have neighbours nor are any.
    A client that could have taken part but has not yet counts as one without neighbours.
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
