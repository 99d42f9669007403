"""Hard EM with two Gaussians, by which PANM decides which similarities are those of neighbours.

Li & Wu (2022), "Towards Effective Clustered Federated Learning: A Peer-to-peer Framework with Adaptive Neighbor
Matching", Eq. 6 to 9: fit both components to the labels, and assign every value to the more likely one, until nothing
changes. The poster calls these steps E and M; textbooks call them M and (hard) E.

As printed, neighbours start in component 1, but the members of component 0, which has the higher mean, become the
neighbours: the poster keeps the other cluster. Here neighbours start in component 0, and components are ordered by mean
after every fit. The poster also leaves open how to fit few values, which have no variance: see ``match_neighbours``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Labels = NDArray[np.bool_]

_MIN_VALUES = 3
"""Minimum number of values to which two Gaussians are fitted."""

_MAX_ITERATIONS = 50
"""Maximum number of iterations of EM, which usually converges after a few."""

_MIN_VARIANCE_SHARE = 1e-3
"""Minimum variance of a component, as a share of the variance of all values."""

_EQUAL_RANGE = 1e-12
"""Largest relative range of values that count as equal."""


@dataclass(frozen=True)
class Mixture:
    """Two components, 0 and 1: ``mean``, ``variance`` and ``share`` of the values, (2,) each."""

    mean: Array
    variance: Array
    share: Array


def match_neighbours(y: Array, near: Labels, *, as_printed: bool = False) -> Labels:
    """Return which similarities ``y`` (n,) belong to the cluster of the present neighbours, ``near`` (n,).

    Neighbours stay as they are if there are fewer than 3 values, or if none or all of them are near. If all values are
    equal, or one component becomes empty, all values are kept as one cluster. ``as_printed`` starts with the labels
    that the poster prints and does not reorder components: a negative control.
    """
    if len(y) < _MIN_VALUES or near.all() or not near.any():
        return near.copy()
    y = replace_nonfinite(y)
    if np.ptp(y) <= _EQUAL_RANGE * max(1.0, float(np.abs(y).max())):
        return np.ones(len(y), dtype=bool)
    zero = ~near if as_printed else near.copy()
    earlier = set()
    for _ in range(_MAX_ITERATIONS):
        earlier.add(zero.tobytes())
        mixture = fit(y, zero)
        in_order = as_printed or mixture.mean[0] >= mixture.mean[1]
        if not in_order:
            mixture, zero = _swap(mixture), ~zero
        zero = assign(y, mixture, zero, clamp=not as_printed)
        if zero.all() or not zero.any():
            return np.ones(len(y), dtype=bool)
        # Floors and clamps can make EM cycle: a repeated labelling ends it, as a fixed point does.
        if zero.tobytes() in earlier:
            break
    return zero


def replace_nonfinite(y: Array) -> Array:
    """Return ``y`` with +inf as the largest finite value, -inf and nan as the smallest; 1 and 0 if none is finite."""
    finite_values = y[np.isfinite(y)]
    high, low = (finite_values.max(), finite_values.min()) if len(finite_values) else (1.0, 0.0)
    return np.where(np.isfinite(y), y, np.where(y == np.inf, high, low))


def fit(y: Array, zero: Labels) -> Mixture:
    """Return the maximum-likelihood components for ``y`` (n,), with the values that ``zero`` marks in component 0.

    A variance is at least a share of that of all values; a component of one value has a quarter of it.
    """
    total = float(y.var())
    parts = (y[zero], y[~zero])
    variance = [part.var() if len(part) > 1 else total / 4 for part in parts]
    return Mixture(
        np.asarray([part.mean() for part in parts]),
        np.maximum(variance, _MIN_VARIANCE_SHARE * total),
        np.asarray([len(part) / len(y) for part in parts]),
    )


def assign(y: Array, mixture: Mixture, before: Labels, *, clamp: bool = True) -> Labels:
    """Return which values are more likely in component 0; ties stay as ``before``.

    With ``clamp`` a value at or above the mean of component 0 belongs to it, and one at or below the other mean does
    not. Without it, the broader component would take both ends.
    """
    score = np.log(mixture.share) - 0.5 * np.log(mixture.variance)
    score = score - 0.5 * (y[:, None] - mixture.mean) ** 2 / mixture.variance  # (n, 2)
    in_zero = np.where(score[:, 0] == score[:, 1], before, score[:, 0] > score[:, 1])
    if clamp:
        in_zero = (in_zero & (y > mixture.mean[1])) | (y >= mixture.mean[0])
    return np.asarray(in_zero, dtype=bool)


def _swap(mixture: Mixture) -> Mixture:
    return Mixture(mixture.mean[::-1], mixture.variance[::-1], mixture.share[::-1])
