"""Splits each client's samples into training, validation and test samples, and reduces them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pflcli import rng
from pflcli.artifacts import client_blocks
from pflcli.artifacts.kinds.partition import Partition
from pflcli.data.datasets import Samples
from pflcli.knn import capacity

Rows = NDArray[np.int64]


def cut(order: Rows, fractions: tuple[float, float, float]) -> list[Rows]:
    """Cut one client's rows, in this ``order``, into training, validation and test rows, sorted.

    A client with samples has at least one training sample.
    """
    test = round(fractions[2] * len(order))
    validation = round(fractions[1] * len(order))
    train = max(len(order) - test - validation, min(1, len(order)))
    test = min(test, len(order) - train)
    return [np.sort(piece) for piece in np.split(order, [train, len(order) - test])]


def split_by_group(
    rows: Rows, fractions: tuple[float, float, float], group: NDArray[np.int64], draw: np.random.Generator
) -> list[Rows]:
    """Split one client's ``rows`` (n,) so that rows of the same ``group`` (n,) are in the same split; see ``cut``.

    In random order, each group moves from the training rows to the test rows if that reduces the sum of the three
    differences from the sizes that ``cut`` would give; then groups move to the validation rows in the same way. At
    least one group stays for training. If all groups have one row, the sizes are those of ``cut``.
    """
    numbers, number_of_row = np.unique(group, return_inverse=True)
    sizes = np.bincount(number_of_row, minlength=len(numbers)).tolist()
    missing = [len(piece) for piece in cut(rows, fractions)]  # rows that each split lacks; negative: too many
    missing[0] -= len(rows)
    split = np.zeros(len(numbers), dtype=np.int8)
    remaining = len(numbers)
    order = draw.permutation(len(numbers)).tolist()
    for target in (2, 1):
        for number in order:
            size = sizes[number]
            before = abs(missing[0]) + abs(missing[target])
            after = abs(missing[0] + size) + abs(missing[target] - size)
            if split[number] == 0 and remaining > 1 and after < before:
                split[number] = target
                missing[0] += size
                missing[target] -= size
                remaining -= 1
    return [np.sort(rows[split[number_of_row] == place]) for place in range(len(client_blocks.SPLITS))]


def keep_test(
    rows: Rows,
    fractions: tuple[float, float, float],
    is_test: NDArray[np.bool_],
    is_validation: NDArray[np.bool_] | None = None,
) -> list[Rows]:
    """Cut as ``cut`` does, but keep the published test samples, ``is_test`` (n,) of the dataset, as test rows.

    kNN-Per (Marfoq et al., 2022), section 5: "we maintained the original training/test data split and used 20% of the
    training dataset as validation dataset". The order of the samples is the same for every seed and client. A
    validation sample of one partition of a dataset is therefore a validation sample of nearly every other, and a model
    that was trained on one partition has hardly seen the validation samples of another. If the dataset has its own
    validation samples, ``is_validation`` (n,), all others are training samples.
    """
    if is_validation is not None:
        return [np.sort(rows[chosen[rows]]) for chosen in (~is_test & ~is_validation, is_validation, is_test)]
    place = rng.generator(0, "validation").permutation(len(is_test))
    order = rows[np.argsort(place[rows])]
    train, validation, _ = cut(order[~is_test[order]], fractions)
    return [train, validation, np.sort(rows[is_test[rows]])]


LEFT_OUT = -1


def split_by_time(samples: Samples, fractions: tuple[float, float, float]) -> NDArray[np.int8]:
    """Split overlapping windows by time; return each sample's split (n,): 0 train, 1 validation, 2 test, or LEFT_OUT.

    A random split would put test hours into training. An owner's rows are cut in their order by ``fractions``; after
    each cut ``samples.gap`` rows are left out. The cut depends only on the owner, so that overlapping windows are in
    the same split for every assignment to clients. Every owner has a training sample.
    """
    split = np.full(len(samples.y), LEFT_OUT, dtype=np.int8)
    _, owner = np.unique(np.asarray(samples.owner), return_inverse=True)
    rows = np.argsort(owner, kind="stable")
    for own_rows in np.split(rows, np.cumsum(np.bincount(owner))[:-1]):
        test = round(fractions[2] * len(own_rows))
        validation = round(fractions[1] * len(own_rows))
        train = max(len(own_rows) - test - validation, 1)
        split[own_rows[:train]] = 0
        split[own_rows[train + samples.gap : train + validation]] = 1
        split[own_rows[train + validation + samples.gap :]] = 2
    return split


def keep_fraction(partition: Partition, clients: Rows, fraction: float, seed: int) -> Partition:
    """Return the partition in which ``clients`` keep a ``fraction`` of their training and validation samples.

    A smaller fraction keeps a subset of what a larger one keeps, as in stores of limited capacity. All test samples
    are kept.
    """
    remaining: list[Rows] = []
    for client in range(len(partition.names)):
        for place, split in enumerate(client_blocks.SPLITS):
            first, last = partition.offsets[len(client_blocks.SPLITS) * client + place :][:2]
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
    )
