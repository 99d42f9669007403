"""How many training samples of each class a client has, from the update of its output layer.

With cross-entropy, the gradient by the biases of the output layer is the mean over samples of p - y, where p are the
predicted probabilities and y is one-hot (Zhao et al. 2020, iDLG, https://arxiv.org/abs/2001.02610, equation 3, of one
sample). So the update of the biases, divided by minus the learning rate and the number of gradients, plus the mean of p
is the share of each class (Wainakh et al. 2022, LLG, https://arxiv.org/abs/2105.09369, of batches). The server knows
the model that it sent, and so p exactly if this model predicts the same for all samples; else it estimates the mean.
After several steps p is that of models in between, for which the mean of the first and the last one stands.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


def estimate_counts(change: NDArray[np.float64], p: NDArray[np.float64], rates: float, samples: int) -> Counts:
    """Return the numbers of samples (C,) by class of a client with so many ``samples``.

    ``change`` (C,) is the update of the biases of the output layer, ``p`` (C,) the mean probabilities during training,
    and ``rates`` the learning rate times the number of gradients.

    >>> import numpy as np
    >>> estimate_counts(np.array([0.05, -0.05]), np.array([0.5, 0.5]), 0.1, 2)
    array([2, 0])
    """
    return round_counts((p + change / rates) * samples, samples)


def round_counts(expected: NDArray[np.float64], samples: int) -> Counts:
    """Return the whole numbers (C,) that add up to ``samples`` nearest to ``expected`` (C,), by largest remainders.

    Expected numbers that are negative or not finite count as 0; if all do, classes are equally frequent.
    """
    wanted = np.maximum(np.nan_to_num(expected, nan=0.0, posinf=0.0, neginf=0.0), 0)
    wanted = wanted * samples / wanted.sum() if wanted.sum() > 0 else np.full(len(wanted), samples / len(wanted))
    counts = np.floor(wanted + 1e-9).astype(np.int64)
    rest = samples - int(counts.sum())
    counts[np.argsort(counts - wanted, kind="stable")[: max(rest, 0)]] += 1
    return counts


def count_wrong(counts: Counts, true: Counts) -> int:
    """Return how many samples are in a wrong class, (C,) each: half of the sum of absolute differences."""
    return int(np.abs(counts - true).sum()) // 2
