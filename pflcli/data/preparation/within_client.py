"""How a client's samples become training, validation and test samples, and fewer of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pflcli import rng
from pflcli.artifacts import blocks
from pflcli.artifacts.kinds.partition import Partition
from pflcli.knn import capacity

Rows = NDArray[np.int64]


def cut(order: Rows, fractions: tuple[float, float, float]) -> list[Rows]:
    """Cut one client's rows, in this ``order``, into training, validation and test rows, sorted.

    Whoever has samples has one to train on.
    """
    test = round(fractions[2] * len(order))
    validation = round(fractions[1] * len(order))
    train = max(len(order) - test - validation, min(1, len(order)))
    test = min(test, len(order) - train)
    return [np.sort(piece) for piece in np.split(order, [train, len(order) - test])]


def by_group(
    rows: Rows, fractions: tuple[float, float, float], group: NDArray[np.int64], draw: np.random.Generator
) -> list[Rows]:
    """Split one client's ``rows`` (n,) so that those of equal ``group`` (n,) stay together; sorted as by ``cut``.

    In random order, each group moves from the training rows to the test rows if that brings the sizes of the three
    splits nearer, summed up, to those that ``cut`` would give them; then likewise to the validation rows. In the end,
    no further group would. One group at least stays for training. If all groups have one row, the sizes are met.
    """
    numbers, of = np.unique(group, return_inverse=True)
    sizes = np.bincount(of, minlength=len(numbers)).tolist()
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
    return [np.sort(rows[split[of] == place]) for place in range(len(blocks.SPLITS))]


def keeping_test(
    rows: Rows,
    fractions: tuple[float, float, float],
    is_test: NDArray[np.bool_],
    is_validation: NDArray[np.bool_] | None = None,
) -> list[Rows]:
    """Cut as ``cut`` does, but give the published test samples, ``is_test`` (n,) of the dataset, to the test rows.

    kNN-Per (Marfoq et al., 2022), section 5: "we maintained the original training/test data split and used 20% of the
    training dataset as validation dataset". One order of all samples, whatever the seed and the client, decides: what
    is for validation in one partition of a dataset is so in nearly every other, and a model that was trained on one
    has hardly seen the validation samples of another. Where the dataset says which samples are for validation, these
    are, and all others are for training.
    """
    if is_validation is not None:
        return [np.sort(rows[chosen[rows]]) for chosen in (~is_test & ~is_validation, is_validation, is_test)]
    place = rng.generator(0, "validation").permutation(len(is_test))
    order = rows[np.argsort(place[rows])]
    train, validation, _ = cut(order[~is_test[order]], fractions)
    return [train, validation, np.sort(rows[is_test[rows]])]


def with_less(partition: Partition, clients: Rows, fraction: float, seed: int) -> Partition:
    """Return the partition in which ``clients`` keep a ``fraction`` of their training and validation samples.

    What is kept of a smaller fraction is kept of a larger one too, as in stores of limited capacity; test samples stay.
    """
    remaining: list[Rows] = []
    for client in range(len(partition.names)):
        for place, split in enumerate(blocks.SPLITS):
            first, last = partition.offsets[len(blocks.SPLITS) * client + place :][:2]
            rows = np.arange(first, last)
            if client in clients and split != "test":
                order = capacity.arrival_order(seed, split, client, len(rows))
                rows = rows[capacity.kept_rows(fraction, order)]
            remaining.append(rows)
    rows = np.concatenate(remaining)
    return replace(
        partition,
        x=partition.x[rows],
        y=partition.y[rows],
        sample=partition.sample[rows],
        offsets=blocks.offsets([len(block) for block in remaining]),
    )
