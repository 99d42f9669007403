"""Summarize attention over clients and models by round: how peaked it is, and how much stays in a group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.evaluation.metrics.neighbourhood import share_cluster

Array = NDArray[Any]

SLOTS = ("own", "attended", "global")
"""The models that the second layer of attention mixes."""


def select_last_round(values: Array, active: NDArray[np.bool_]) -> Array:
    """Return the values (m, ...) of each client's last active round from ``values`` (r, m, ...); nan if never active.

    ``active`` (r, m) marks the clients that took part in each of the r rounds.
    """
    last = len(active) - 1 - active[::-1].argmax(axis=0)
    rows: Array = values[last, np.arange(active.shape[1])].astype(np.float64)
    rows[~active.any(axis=0)] = math.nan
    return rows


def summarize_rounds(
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
