"""Splits each client's samples into training, validation and test samples, names clients, and transforms clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core import rng
from pflcli.core.datasets import SPLITS, Samples
from pflcli.core.errors import UnsuitedError, UsageError
from pflcli.core.schemes import Scheme

Rows = NDArray[np.int64]

FRACTIONS = (0.6, 0.2, 0.2)
"""Train, validation and test: kNN-Per (Marfoq et al., 2022), section 5, for natural clients."""
FRACTIONS_BESIDE_TEST = (0.8, 0.2, 0.0)
"""Fractions of the other samples if the dataset's published test samples are kept."""


def check_fractions(fractions: tuple[float, float, float]) -> None:
    """Raise UsageError for ``fractions`` that are negative, do not add up to 1, or have no training samples."""
    if len(fractions) != 3 or not all(isinstance(part, int | float) for part in fractions):
        raise UsageError(f"fractions {fractions!r} are not three numbers: train, validation, test", "0.6,0.2,0.2")
    if min(fractions) < 0 or not abs(sum(fractions) - 1) <= 1e-9 or fractions[0] == 0:
        listed = ",".join(f"{part:g}" for part in fractions)
        raise UsageError(
            f"fractions {listed} (train, validation, test) must be positive or 0, train above 0, and add up to 1",
            "0.6,0.2,0.2",
        )


def require_task(name: str, scheme: Scheme, kind: str) -> None:
    """Raise UnsuitedError if a scheme does not divide samples with labels of this kind."""
    if not {kind, "any"} & {*scheme.TASKS}:
        raise UnsuitedError(
            f"scheme {name} divides by {' and '.join(scheme.TASKS)}, and the task is {kind}", "--scheme natural or iid"
        )


def split_clients(
    samples: Samples, parts: Sequence[Rows], fractions: tuple[float, float, float], seed: int
) -> list[Rows]:
    """Return the rows of each block (client, split), in this order, for clients with these ``parts`` of the rows.

    Published test samples stay test samples; samples that are ordered are split by time, and groups stay together.
    """
    blocks: list[Rows] = []
    in_time = split_by_time(samples, fractions) if samples.ordered and samples.gap else None
    for client, part in enumerate(parts):
        draw = rng.generator(seed, "split", client)
        if in_time is not None:
            blocks += [np.sort(part[in_time[part] == split]) for split in range(len(SPLITS))]
        elif samples.ordered:  # samples do not overlap, so that each client can have its own cuts
            blocks += cut(np.sort(part), fractions)
        elif samples.is_test is not None:
            blocks += keep_test(part, fractions, samples.is_test, samples.is_validation)
        elif samples.group is not None:
            blocks += split_by_group(part, fractions, samples.group[part], draw)
        else:
            blocks += cut(draw.permutation(part), fractions)
    return blocks


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
    return [np.sort(rows[split[number_of_row] == place]) for place in range(len(SPLITS))]


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


def transform_clusters(
    x: Any,
    y: NDArray[np.int64],
    sizes: NDArray[np.int64],
    cluster: NDArray[np.int64],
    scheme: Scheme,
    cfg: Any,
    classes: int,
    seed: int,
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return samples (n, ...) and labels (n,), transformed by ``scheme`` for the ``cluster`` (m,) of each client.

    The samples of client 0 come first; ``sizes`` (m,) are the numbers of samples.
    """
    x, y = np.array(x), y.copy()
    holder = np.repeat(cluster, sizes)
    for group in np.unique(cluster).tolist():
        rows = holder == group
        draw = rng.generator(seed, "transform")
        x[rows], y[rows] = scheme.transform(x[rows], y[rows], group, classes, cfg, draw)
    return x, y


def name_clients(samples: Samples, parts: Sequence[Rows]) -> list[str]:
    """Return the names of clients with these ``parts``: those of the owners if each client is one, else numbers."""
    if samples.owner is not None and parts and all(map(len, parts)):
        owners = samples.owner[[part[0] for part in parts]]
        sizes = [len(part) for part in parts]
        if (samples.owner[np.concatenate(parts)] == np.repeat(owners, sizes)).all():
            return [str(owner) for owner in owners.tolist()]
    return [f"client-{client:04d}" for client in range(len(parts))]
