"""Clients that came after the rounds, behind those of the partition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pflcli.artifacts import client_blocks
from pflcli.artifacts.kinds.partition import Partition
from pflcli.artifacts.kinds.predictions import LaterClients


def extended(data: Partition, later: LaterClients, count: int) -> Partition:
    """Return the partition with later clients behind its own, ``count`` clients in all; these are unseen.

    True clusters are left out, as they are not known of a later client.
    """
    more = count - len(data.names)
    offsets = later.offsets[: len(client_blocks.SPLITS) * more + 1]
    rows = slice(0, int(offsets[-1]))
    known = np.zeros(len(data.names), np.bool_) if data.new is None else data.new
    return replace(
        data,
        x=np.concatenate([data.x, later.x[rows]]),
        y=np.concatenate([data.y, later.y[rows]]),
        sample=np.concatenate([data.sample, later.sample[rows]]),
        offsets=np.concatenate([data.offsets, data.offsets[-1] + offsets[1:]]),
        names=[*data.names, *(f"later {number}" for number in range(more))],
        cluster=None,
        poisoned=None,
        update_factor=None,
        update_noise=None,
        new=np.concatenate([known, np.ones(more, np.bool_)]),
    )


def joined(first: LaterClients | None, second: LaterClients) -> LaterClients:
    """Return the later clients ``first``, if there are any, and those of ``second`` behind them."""
    if first is None:
        return second
    return LaterClients(
        np.concatenate([first.x, second.x]),
        np.concatenate([first.y, second.y]),
        np.concatenate([first.sample, second.sample]),
        np.concatenate([first.offsets, first.offsets[-1] + second.offsets[1:]]),
    )
