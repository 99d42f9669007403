"""Single training samples of a client, from the update of the layer that takes the features.

The gradient by the weights of a unit of this layer is the sum of samples x, each times the error d of the unit for that
sample; that by its bias is the sum of d. If one sample alone activates a ReLU unit, or the client has no other sample,
the quotient of both is this sample (Phong et al. 2018, https://eprint.iacr.org/2017/715, section III; Geiping et al.
2020, https://arxiv.org/abs/2003.14053, proposition 3.1). It stays so over several steps of SGD, whatever the rate, as
long as no other sample activates the unit. Otherwise the quotient is a weighted mean of samples. Servers that choose
weights for this purpose find far more (Fowl et al. 2022, https://arxiv.org/abs/2110.13057; Boenisch et al. 2023,
https://arxiv.org/abs/2112.02918); and for small batches of full gradients so do honest ones that take the gradient
apart (Dimitrov et al. 2024, https://arxiv.org/abs/2403.03945). Neither is done here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]

TOLERANCE = 0.01
"""The largest difference of a recovered value from the true one, in deviations of its column."""


def divide_updates(weights: Rows, biases: NDArray[np.float64]) -> Rows:
    """Return the quotients (k, d) of weight updates (h, d) and bias updates (h,) of units that have changed.

    >>> import numpy as np
    >>> divide_updates(np.array([[0.5, 1.0], [0.0, 0.0]]), np.array([0.25, 0.0]))
    array([[2., 4.]])
    """
    moved = biases != 0
    quotients: Rows = weights[moved] / biases[moved, None]
    return quotients[np.isfinite(quotients).all(axis=1)]


def read_lone_samples(weights: Rows, rates: float, counts: NDArray[np.int64]) -> Rows:
    """Return the samples (k, d) that are alone in their class, from the weight updates (C, d) of logistic regression.

    ``counts`` (C,) are the class counts, and ``rates`` the learning rate times the number of gradients. It holds if the
    model predicts the same for all samples and their features add up to 0: the gradient by the weights of a class is
    then minus the sum of its samples, divided by the number of all samples.
    """
    return np.asarray(weights[counts == 1] / rates * counts.sum())


def find_agreeing(candidates: Rows, deviation: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return one position for each group of candidates (k, d) that agree within the tolerance.

    Units that several samples activate weigh them differently, so that a server takes two units that agree for a
    single sample.
    """
    chosen: list[int] = []
    for place, candidate in enumerate(candidates):
        alike = np.flatnonzero(measure_errors(candidates, candidate, deviation) <= TOLERANCE)
        if len(alike) > 1 and alike[0] == place:
            chosen.append(place)
    return np.asarray(chosen, np.int64)


def find_records(candidates: Rows, records: Rows, deviation: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return for each record (n, d) the candidate (k, d) that equals it within the tolerance, -1 without one."""
    found, least = np.full(len(records), -1), np.full(len(records), TOLERANCE)
    for place, candidate in enumerate(candidates):
        errors = measure_errors(records, candidate, deviation)
        nearer = errors <= least
        found[nearer], least[nearer] = place, errors[nearer]
    return found


def measure_errors(records: Rows, candidate: NDArray[np.float64], deviation: NDArray[np.float64]) -> Rows:
    """Return the largest difference (n,) of a column of each record (n, d) from a candidate (d,), in deviations."""
    return np.asarray((np.abs(records - candidate) / deviation).max(axis=1))


def draw_guesses(records: Rows, count: int, draw: np.random.Generator) -> Rows:
    """Return ``count`` rows (count, d), each value of which is drawn from its column of ``records`` (n, d).

    So a guess knows how often each value of a column occurs at the client, but not which belong together. It is more
    than an attacker knows: what it finds, an attack finds by chance.
    """
    rows = draw.integers(len(records), size=(count, records.shape[1]))
    return records[rows, np.arange(records.shape[1])]
