"""Uncertainty of a gain for the clients of a table themselves: other seeds, splits and samples, but no other clients.

With a handful of clients, the interval of a gain for clients *like these* is as wide as clients differ, whatever the
number of seeds. The clients themselves, four hospitals for example, ask another question: what will we gain?
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.evaluation.metrics import gains
from pflcli.evaluation.metrics.gains import Estimate

Array = NDArray[Any]

MAX_FIXED = 9
"""The most clients for which a table also has the interval for these clients themselves."""


def mean_gain(
    differences: Sequence[Array],
    clients: Sequence[NDArray[np.int64]],
    samples: Sequence[NDArray[np.int64]],
    shared_variance: float | None = None,
) -> Estimate | None:
    """Estimate the mean gain of fixed clients over seeds, with its uncertainty; None for a single sample.

    For each seed, ``differences`` (n,) are those of single samples, such as 1 where only the method is right and -1
    where only the baseline is, ``clients`` (n,) their clients and ``samples`` (n,) their ids, the same under each seed.

    This is the estimate for clients like these, with samples in the place of clients: a sample that several seeds test
    counts once. Clients are strata, whose own means are subtracted, so that differences between them do not count.
    """
    values, ids = [], []
    last = max(int(each.max(initial=0)) for each in samples) + 1
    for difference, client, sample in zip(differences, clients, samples, strict=True):
        n = np.maximum(np.bincount(client), 1)
        rest = difference - (np.bincount(client, weights=difference) / n)[client]
        values.append(difference.mean() + rest * np.sqrt(n / np.maximum(n - 1, 1))[client])
        ids.append(client * last + sample)
    return gains.mean_gain(values, [np.ones(len(each)) for each in values], ids, shared_variance)
