"""Splits by time: for samples that follow each other and overlap, a random split would put test hours into training."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pflcli.data.datasets import Samples

LEFT_OUT = -1


def split_by_time(samples: Samples, fractions: tuple[float, float, float]) -> NDArray[np.int8]:
    """Return each sample's split (n,): 0 train, 1 validation, 2 test, or LEFT_OUT between two splits.

    An owner's rows are cut in their order by ``fractions``; after each cut ``samples.gap`` rows are left out. The cut
    depends on the owner alone, so that windows that overlap lie in one split whichever clients they fall to. Every
    owner has a training sample.
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
