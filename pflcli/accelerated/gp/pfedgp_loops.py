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

from pflcli.accelerated.compiler import compiled
from pflcli.accelerated.gp.gaussian_process_blocks import back_substitute, factor, group_size, new_factors
from pflcli.accelerated.gp.gaussian_process_lanes import back_substitute as back_substitute_few
from pflcli.accelerated.gp.gaussian_process_lanes import factored, roots_and_targets
from pflcli.accelerated.gp.gibbs_loops import expect
from pflcli.accelerated.lanes import minus_products, products
from pflcli.accelerated.products import product, product_by_rows, transpose
from pflcli.accelerated.vectors import as_row

Array = NDArray[Any]

_HALF, _ONE, _TWO = (np.float32(value) for value in (0.5, 1, 2))
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
    n = len(omega)
    root, targets = roots_and_targets(labels[:n], omega)
    b = factored(wide, len(labels), root, targets)
    mean, variance = _few_moments(b, np.float32(scale))
    result: float = loss(mean, variance, labels[n:], at, weight)
    back_substitute_few(b)
    _few_gradient(b, as_row(root), as_row(mean), as_row(variance), wide)
    return result


@compiled
def _few_moments(b: Array, scale: float) -> tuple[Array, Array]:
    """Return means and variances (m, chains) of f by the factors ``b`` (n + m + 1, n, chains).

    Below its square are R' = (L^-1 W^1/2 K*)', then r = L^-1 W^-1/2 kappa: the mean is R'r, the variance ``scale`` less
    the squares of R.
    """
    n, chains = b.shape[1:]
    m, row = len(b) - n - 1, n * chains
    mean, variance = np.zeros((m, chains), np.float32), np.empty((m, chains), np.float32)
    flat, flat_variance = as_row(mean), as_row(variance)
    for e in range(len(flat)):
        flat_variance[e] = scale
    minus_products(n, b, n * row, row, chains, b, (n + m) * row, chains, mean, 0, chains, m, chains)
    for q in range(m):
        own = (n + q) * row
        minus_products(n, b, own, row, chains, b, own, chains, variance, q * chains, chains, 1, chains)
    for e in range(len(flat)):
        flat[e] = -flat[e]
    return mean, variance


@compiled
def _few_gradient(b: Array, root: Array, by_mean: Array, by_variance: Array, wide: Array) -> None:
    """Write the gradient by ``wide`` for those by means and variances (m chains,), and ``b`` after back substitution.

    By K it is a product of rows, of a sample each: U', alpha', and minus the derivative by what moves the means.
    """
    n, chains = b.shape[1:]
    m, columns = len(b) - n - 1, wide.shape[1]
    row, alpha, moved = (m + 2) * chains, m * chains, (m + 1) * chains
    turned, weighted, ones = np.zeros(n * row, np.float32), np.empty(n * row, np.float32), np.empty(chains, np.float32)
    for c in range(chains):
        ones[c] = _ONE
    by_cross, flat, to = np.empty_like(by_variance), as_row(b), as_row(wide)
    for e in range(len(by_cross)):
        by_cross[e] = -_TWO * by_variance[e]
    for i in range(n):
        own = i * row
        for q in range(m + 1):
            products(_ONE, root, i * chains, flat, ((n + q) * n + i) * chains, turned, own + q * chains, chains)
        minus_products(m, turned, own, row, chains, by_mean, 0, chains, turned, own + moved, row, 1, chains)
        products(_ONE, turned, own, by_variance, 0, weighted, own, alpha)
        products(_HALF, turned, own + moved, ones, 0, weighted, own + alpha, chains)
        products(_HALF, turned, own + alpha, ones, 0, weighted, own + moved, chains)
    product_by_rows((n, n, row), weighted, 0, row, turned, 0, row, to, 0, columns, 0)
    product_by_rows((n, m, chains), turned, alpha, row, by_mean, 0, chains, to, n, columns, 0)
    for q in range(m):
        product_by_rows((n, 1, chains), turned, q * chains, row, by_cross, q * chains, chains, to, n + q, columns, 1)


@compiled
def reduced(wide: Array, labels: Array, omega: Array, scale: float, keeps: bool) -> tuple[Array, Array, Array, Array]:
    """Return factors and inverses of ``gaussian_process_blocks``, and means and variances (m, chains) of f.

    The factors of all chains if it ``keeps`` them, else of the last few.
    """
    n, chains = omega.shape
    m = wide.shape[1] - n
    root, last = roots_and_targets(labels[:n], omega)
    step = group_size(n, n + m + 1, chains)
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
