"""Partitions in which clients keep only some of their samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pflcli.artifacts import client_blocks, kept_columns
from pflcli.artifacts.kinds.partition import Partition
from pflcli.core.datasets import SPLITS
from pflcli.core.knn import capacity
from pflcli.core.splits import Rows


def keep_fraction(partition: Partition, clients: Rows, fraction: float, seed: int) -> Partition:
    """Return the partition in which ``clients`` keep a ``fraction`` of their training and validation samples.

    A smaller fraction keeps a subset of what a larger one keeps, as in stores of limited capacity. All test samples
    are kept.
    """
    remaining: list[Rows] = []
    for client in range(len(partition.names)):
        for place, split in enumerate(SPLITS):
            first, last = partition.offsets[len(SPLITS) * client + place :][:2]
            rows = np.arange(first, last)
            if client in clients and split != "test":
                order = capacity.arrival_order(seed, split, client, len(rows))
                rows = rows[capacity.kept_rows(fraction, order)]
            remaining.append(rows)
    return select_rows(partition, np.concatenate(remaining), [len(block) for block in remaining])


def select_rows(partition: Partition, rows: Rows, sizes: list[int]) -> Partition:
    """Return the partition with only these ``rows``, of which ``sizes`` belong to each split of each client."""
    return replace(
        partition,
        x=partition.x[rows],
        y=partition.y[rows],
        sample=partition.sample[rows],
        offsets=client_blocks.offsets(sizes),
        kept=kept_columns.select(partition.kept, rows),
    )
