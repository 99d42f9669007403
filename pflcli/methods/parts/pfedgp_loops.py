"""Compiled loops of pFedGP: the loss at a node of a tree, its gradient, and what answers follow from.

``gaussian_process.py`` has the formulas. ``wide`` are covariances (n, n + m) of n samples that are given with
themselves, with jitter, and with m that are predicted; ``labels`` (n + m,) are +1 and -1. Chains stand last in every
array, but first in factors of many samples.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.engine.cpu.compiler import compiled
from pflcli.engine.cpu.products import product, transpose
from pflcli.engine.cpu.vectors import as_row
from pflcli.methods.parts.gaussian_process_blocks import back_substitute, factor, group_size, new_factors
from pflcli.methods.parts.gaussian_process_lanes import backward, factored, forward
from pflcli.methods.parts.gibbs_loops import expect

Array = NDArray[Any]

_HALF, _TWO = np.float32(0.5), np.float32(2)
_ROWS = 32
"""Rows of a symmetric product that are computed up to the same column."""


@compiled
def loss(mean: Array, variance: Array, sign: Array, at: Array, weight: Array) -> float:
    """Return -sum log of the mean over chains of E[sigmoid(s f)], and replace both (q, chains) by its gradients."""
    queries, chains = mean.shape
    value, result = np.empty((queries, chains), np.float32), 0.0
    expect(mean, variance, sign, at, weight, value)
    for q in range(queries):
        p = 0.0
        for c in range(chains):
            p += value[q, c]
        result -= math.log(p / chains)
        scale = np.float32(-1 / p)
        for c in range(chains):
            mean[q, c] *= scale
            variance[q, c] *= scale
    return result


@compiled
def few_samples(wide: Array, labels: Array, omega: Array, scale: float, at: Array, weight: Array) -> float:
    """Return the loss of the samples that are predicted, and replace ``wide`` by its gradient.

    With M = (K + W^-1)^-1, alpha = M W^-1 kappa and U = M K*, the mean K*' alpha has the gradients alpha and -U alpha',
    the variance -2 U and U U'.
    """
    count, chains = omega.shape
    m = len(labels) - count
    root, alpha = np.empty((count, chains), np.float32), np.empty((count, 1, chains), np.float32)
    u = np.empty((count, m, chains), np.float32)
    for i in range(count):
        target = _HALF * np.float32(labels[i])
        for c in range(chains):
            root[i, c] = math.sqrt(omega[i, c])
            alpha[i, 0, c] = target / root[i, c]
        for q in range(m):
            for c in range(chains):
                u[i, q, c] = root[i, c] * wide[i, count + q]
    b = factored(wide, root)
    forward(b, alpha)
    backward(b, alpha)
    forward(b, u)
    mean, variance = np.zeros((m, chains), np.float32), np.empty((m, chains), np.float32)
    for q in range(m):
        for c in range(chains):
            variance[q, c] = scale
    for i in range(count):
        for c in range(chains):
            alpha[i, 0, c] *= root[i, c]
        for q in range(m):
            for c in range(chains):
                mean[q, c] += alpha[i, 0, c] * wide[i, count + q]
                variance[q, c] -= u[i, q, c] * u[i, q, c]
    backward(b, u)
    for i in range(count):
        for q in range(m):
            for c in range(chains):
                u[i, q, c] *= root[i, c]
    result: float = loss(mean, variance, labels[count:], at, weight)
    weighted, moved = np.empty((m, chains), np.float32), np.zeros((count, chains), np.float32)
    flat = as_row(weighted)
    for i in range(count):
        for q in range(m):
            total = np.float32(0)
            for c in range(chains):
                total += mean[q, c] * alpha[i, 0, c] - _TWO * variance[q, c] * u[i, q, c]
                weighted[q, c] = variance[q, c] * u[i, q, c]
                moved[i, c] += mean[q, c] * u[i, q, c]
            wide[i, count + q] = total
        for j in range(i + 1):  # symmetric, as K is
            total, own = np.float32(0), as_row(u[j])
            for at_once in range(len(flat)):
                total += flat[at_once] * own[at_once]
            for c in range(chains):
                total -= _HALF * (moved[i, c] * alpha[j, 0, c] + moved[j, c] * alpha[i, 0, c])
            wide[i, j] = wide[j, i] = total
    return result


@compiled
def reduced(wide: Array, labels: Array, omega: Array, scale: float, keeps: bool) -> tuple[Array, Array, Array, Array]:
    """Return factors and inverses of ``gaussian_process_blocks``, and means and variances (m, chains) of f.

    The factors of all chains if it ``keeps`` them, else of the last few.
    """
    n, chains = omega.shape
    m = wide.shape[1] - n
    root, last = np.empty((n, chains), np.float32), np.empty((n, 1, chains), np.float32)
    step = group_size(n, n + m + 1, chains)
    for i in range(n):
        target = _HALF * np.float32(labels[i])
        for c in range(chains):
            root[i, c] = math.sqrt(omega[i, c])
            last[i, 0, c] = target / root[i, c]
    u, inverses = new_factors(n, n + m + 1, chains if keeps else step)
    mean, variance = np.empty((m, chains), np.float32), np.empty((m, chains), np.float32)
    for c in range(0, chains, step):
        begin, group = c if keeps else 0, min(step, chains - c)
        of_group = u[begin : begin + group]
        factor(wide, n + m, root, last, of_group, inverses[begin : begin + group], c)
        _predict(of_group, m, c, np.float32(scale), mean, variance)
    return u, inverses, mean, variance


@compiled
def _predict(u: Array, m: int, first_chain: int, scale: float, mean: Array, variance: Array) -> None:
    """Write means and variances (m, chains) by the factors ``u`` (group, n, row) of chains from ``first_chain`` on.

    Columns n to n + m are R = U'^-1 W^1/2 K*, then one of r = U'^-1 W^-1/2 kappa: the mean is R'r, the variance
    ``scale`` less the squares of R.
    """
    n = u.shape[1]
    total, squares = np.empty(m, np.float32), np.empty(m, np.float32)
    for c in range(len(u)):
        for q in range(m):
            total[q] = squares[q] = 0
        for i in range(n):
            own, target = u[c, i, n : n + m], u[c, i, n + m]
            for q in range(len(own)):
                total[q] += target * own[q]
                squares[q] += own[q] * own[q]
        for q in range(m):
            mean[q, first_chain + c] = total[q]
            variance[q, first_chain + c] = scale - squares[q]


@compiled
def gradient(u: Array, inverses: Array, omega: Array, by_mean: Array, by_variance: Array, wide: Array) -> None:
    """Replace ``wide`` by the gradient of a loss whose gradients ``by_mean`` and ``by_variance`` (m, chains) are."""
    n, chains = omega.shape
    m = len(by_mean)
    turned, weighted = np.empty((m + 2, n), np.float32), np.empty((m + 2, n), np.float32)
    by_cross, flat, row = np.zeros((m, n), np.float32), as_row(wide), wide.shape[1]
    flat_turned, flat_weighted = as_row(turned), as_row(weighted)
    for e in range(len(flat)):
        flat[e] = 0
    for c in range(chains):
        back_substitute(n, u[c : c + 1], inverses[c : c + 1], n, m + 1)
        transpose(as_row(u[c]), n, u.shape[2], flat_turned, 0, n, n, m + 1)
        _weigh(turned, weighted, by_cross, omega, by_mean, by_variance, c)
        for first in range(0, n, _ROWS):
            size, place = (min(_ROWS, n - first), n - first, m + 2), first * row + first
            product(size, flat_weighted, first, 1, n, flat_turned, first, n, flat, place, row, 1)
    for i in range(n):
        for j in range(i):
            wide[i, j] = wide[j, i]
        for q in range(m):
            wide[i, n + q] = by_cross[q, i]


@compiled
def _weigh(
    turned: Array, weighted: Array, by_cross: Array, omega: Array, by_mean: Array, by_variance: Array, chain: int
) -> None:
    """Write the rows whose products with those of ``turned`` (m + 2, n) are the gradient by K of one ``chain``.

    Of ``turned`` the first m rows become U' and the next alpha', the last is written. ``by_mean`` and ``by_variance``
    (m, chains) are gradients of the loss. Those by K* are added to ``by_cross`` (m, n).
    """
    m, n = by_cross.shape
    alpha, moved, half = turned[m], turned[m + 1], weighted[m + 1]
    root = np.empty(n, np.float32)
    for i in range(n):
        root[i] = math.sqrt(omega[i, chain])
        alpha[i] *= root[i]
        moved[i] = 0
        half[i] = -_HALF * alpha[i]
    for q in range(m):
        own, product_row, cross = turned[q], weighted[q], by_cross[q]
        of_mean, of_variance = by_mean[q, chain], by_variance[q, chain]
        for i in range(n):
            value = own[i] * root[i]
            own[i] = value
            moved[i] += of_mean * value
            product_row[i] = of_variance * value
            cross[i] += of_mean * alpha[i] - _TWO * of_variance * value
    last = weighted[m]
    for i in range(n):
        last[i] = -_HALF * moved[i]
