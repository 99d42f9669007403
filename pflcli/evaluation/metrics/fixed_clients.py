"""Uncertainty of a gain for the clients of a table themselves: other seeds, splits and samples, but no other clients.

With a handful of clients, the interval of a gain for clients *like these* is as wide as clients differ, whatever the
number of seeds. The clients themselves, four hospitals for example, ask another question: what will we gain?
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pflcli.evaluation.metrics import gains
from pflcli.evaluation.metrics.gains import Estimate

MAX_FIXED = 9
"""The most clients for which a table also has the interval for these clients themselves."""


def mean_gain(sums: NDArray[np.int64], shared_variance: float | None = None) -> Estimate | None:
    """Estimate the mean gain of fixed clients over seeds, with its uncertainty; None for a single sample.

    ``sums`` (S, S, m, 3) are those of two seeds and a client over the samples that both seeds test: their number, the
    sum of the products of their differences, such as 1 where only the method is right and -1 where only the baseline
    is, and the sum of the differences under the first seed.

    This is the estimate for clients like these, with samples in the place of clients: a sample that several seeds test
    counts once. Clients are strata, whose own means are subtracted, so that differences between them do not count.
    """
    count, product, own = np.moveaxis(sums.astype(np.float64), 3, 0)
    n, total = (np.diagonal(each).T for each in (count, own))  # (S, m)
    mean, all_ = total / n, n.sum(axis=1)
    # Sums of products of deviations from a client's means under both seeds, on the samples that these have in common.
    rest = product - mean[:, None] * own.swapaxes(0, 1) - mean * own + count * mean[:, None] * mean
    factor = np.sqrt(n / np.maximum(n - 1, 1)) / (all_ * np.sqrt(1 - 1 / np.maximum(all_, 2)))[:, None]
    products = (rest * factor[:, None] * factor).sum(axis=2)
    effective = len(n) ** 2 / float((count.sum(axis=2) / np.outer(all_, all_)).sum())
    return gains.estimate_mean(total.sum(axis=1) / all_, products, effective, shared_variance)
