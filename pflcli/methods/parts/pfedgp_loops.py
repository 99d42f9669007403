"""Compiled loops of pFedGP: Gaussian processes over few samples.

A client's nodes have a few samples each, for which a call to LAPACK takes longer than its arithmetic. Chains stand last
in every array, so that the innermost loops run over them. ``gaussian_process.py`` has the formulas.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.engine.cpu.compiler import compiled
from pflcli.engine.cpu.lanes import minus_products
from pflcli.engine.cpu.products import product
from pflcli.engine.cpu.vectors import as_row
from pflcli.methods.parts.gaussian_process import REST, TERMS

Array = NDArray[Any]

_HALF, _ONE = np.float32(0.5), np.float32(1)
_SQUARES = np.asarray([2 * math.pi**2 * (k + 0.5) ** 2 for k in range(TERMS)], dtype=np.float32)
_SPREAD, _OFFSET, _SLOPE = (np.float32(value) for value in REST)
_LEAST_C, _LEAST_VARIANCE, _MOST_LOGIT = np.float32(0.02), np.float32(1e-6), np.float32(80)


_ROWS = 4
_minus4, _minus1 = minus_products(_ROWS), minus_products(1)


@compiled
def _cholesky(b: Array) -> None:
    """Replace ``b`` (n, n, chains), of which the lower half counts, by its factors, with reciprocals as diagonals."""
    n, chains = len(b), b.shape[2]
    row = n * chains
    for j in range(n):
        i = j
        while i < n:
            place = i * row
            if n - i >= _ROWS:
                _minus4(j, b, place, row, chains, b, j * row, chains, b, place + j * chains, row, chains)
                i += _ROWS
            else:
                _minus1(j, b, place, row, chains, b, j * row, chains, b, place + j * chains, row, chains)
                i += 1
        for c in range(chains):
            b[j, j, c] = _ONE / math.sqrt(b[j, j, c])
        for i in range(j + 1, n):
            for c in range(chains):
                b[i, j, c] *= b[j, j, c]


@compiled
def _eliminate(b: Array, b0: int, b_step: int, x: Array, i: int, first: int, count: int) -> None:
    """Subtract ``count`` rows of ``x`` (n, m, chains), from ``first`` on, times numbers of ``b`` from row i.

    Then scale it by the reciprocal of the diagonal.
    """
    m, chains = x.shape[1], x.shape[2]
    row = m * chains
    q = 0
    while q < m:
        place = q * chains
        if m - q >= _ROWS:
            _minus4(count, x, first * row + place, chains, row, b, b0, b_step, x, i * row + place, chains, chains)
            q += _ROWS
        else:
            _minus1(count, x, first * row + place, chains, row, b, b0, b_step, x, i * row + place, chains, chains)
            q += 1
    for q in range(m):
        for c in range(chains):
            x[i, q, c] *= b[i, i, c]


@compiled
def _forward(b: Array, x: Array) -> None:
    """Replace ``x`` (n, m, chains) by L^-1 x."""
    n, chains = len(b), b.shape[2]
    for i in range(n):
        _eliminate(b, i * n * chains, chains, x, i, 0, i)


@compiled
def _backward(b: Array, x: Array) -> None:
    """Replace ``x`` (n, m, chains) by L'^-1 x."""
    n, chains = len(b), b.shape[2]
    for i in range(n - 1, -1, -1):
        _eliminate(b, ((i + 1) * n + i) * chains, n * chains, x, i, i + 1, n - 1 - i)


@compiled
def _factored(k: Array, root: Array) -> Array:
    """Return the factors (n, n, chains) of I + W^1/2 K W^1/2 for ``k`` (n, n) and ``root`` (n, chains)."""
    n, chains = root.shape
    b = np.empty((n, n, chains), np.float32)
    for i in range(n):
        for j in range(i + 1):
            for c in range(chains):
                b[i, j, c] = root[i, c] * k[i, j] * root[j, c]
        for c in range(chains):
            b[i, i, c] += _ONE
    _cholesky(b)
    return b


@compiled
def _polya_gamma(f: Array, draws: Array, omega: Array) -> None:
    """Write draws from PG(1, f) into ``omega`` (n, chains), see ``gaussian_process.polya_gamma``."""
    n, chains = f.shape
    size, decay = np.empty(chains, np.float32), np.empty(chains, np.float32)
    for i in range(n):
        for c in range(chains):
            size[c] = max(abs(f[i, c]), _LEAST_C)
            decay[c] = math.exp(-size[c])
        for c in range(chains):
            half_square = _HALF * size[c] * size[c]
            mean = (_ONE - decay[c]) / ((_ONE + decay[c]) * (size[c] + size[c]))
            total = np.float32(0)
            for term in range(TERMS):
                share = _ONE / (_SQUARES[term] + half_square)
                total += draws[term, i, c] * share
                mean -= share
            root = math.sqrt(_OFFSET + _SLOPE * size[c] * size[c])
            mean += _SPREAD / (root * math.sqrt(root)) * (draws[TERMS, i, c] - _ONE)
            omega[i, c] = total + max(mean, np.float32(0))


@compiled
def gibbs(k: Array, sign: Array, normals: Array, exponentials: Array, omega: Array) -> None:
    """Sweep chains in place: ``omega`` (n, chains) of samples with covariances ``k`` (n, n) and labels ``sign`` (n,).

    ``normals`` (sweeps, 2, n, chains) and ``exponentials`` (sweeps, TERMS + 1, n, chains) are draws.
    """
    n, chains = omega.shape
    size, factor = (n, chains, n), np.zeros((n, n))
    for i in range(n):  # in float64, as in ``gaussian_process.gibbs``
        for j in range(i + 1):
            total = np.float64(k[i, j])
            for p in range(j):
                total -= factor[i, p] * factor[j, p]
            factor[i, j] = math.sqrt(total) if i == j else total / factor[j, j]
    lower = as_row(factor.astype(np.float32))
    f, right = np.empty((n, chains), np.float32), np.empty((n, 1, chains), np.float32)
    normal_row, k_row, f_row = as_row(normals), as_row(k), as_row(f)
    for sweep in range(len(normals)):
        root = np.sqrt(omega)
        product(size, lower, 0, n, 1, normal_row, 2 * sweep * n * chains, chains, f_row, 0, chains, 0)
        for i in range(n):
            target = _HALF * np.float32(sign[i])
            for c in range(chains):
                right[i, 0, c] = target / root[i, c] - root[i, c] * f[i, c] - normals[sweep, 1, i, c]
        b = _factored(k, root)
        _forward(b, right)
        _backward(b, right)
        for j in range(n):
            for c in range(chains):
                right[j, 0, c] *= root[j, c]
        product(size, k_row, 0, n, 1, as_row(right), 0, chains, f_row, 0, chains, 1)
        _polya_gamma(f, exponentials[sweep], omega)


@compiled
def _expectations(mean: Array, variance: Array, sign: Array, at: Array, weight: Array) -> float:
    """Return -sum log of the mean over chains of E[sigmoid(s f)], f ~ N(``mean``, ``variance``), both (q, chains).

    They are replaced by the gradients; ``sign`` (q,). ``at`` and ``weight`` are those of a quadrature.
    """
    queries, chains = mean.shape
    loss = 0.0
    for q in range(queries):
        s, p = np.float32(sign[q]), 0.0
        for c in range(chains):
            clamped = variance[q, c] < _LEAST_VARIANCE
            spread = math.sqrt(np.float32(2) * max(variance[q, c], _LEAST_VARIANCE))
            by_mean, by_spread = np.float32(0), np.float32(0)
            for point in range(len(at)):
                logit = s * (mean[q, c] + spread * at[point])
                logit = min(max(logit, -_MOST_LOGIT), _MOST_LOGIT)
                decay = math.exp(-logit)
                value = weight[point] / (_ONE + decay)
                slope = value * (decay / (_ONE + decay))
                p += value
                by_mean += slope
                by_spread += slope * at[point]
            mean[q, c] = s * by_mean
            variance[q, c] = np.float32(0) if clamped else s * by_spread / spread
        loss -= math.log(p / chains)
        scale = np.float32(-1 / p)
        for c in range(chains):
            mean[q, c] *= scale
            variance[q, c] *= scale
    return loss


@compiled
def _node(
    k: Array, cross: Array, sign: Array, query_sign: Array, omega: Array, scale: float, at: Array, weight: Array
) -> float:
    """Return the loss of samples of labels ``query_sign`` (q,), of covariances ``cross`` (n, q) with those given.

    ``k`` (n, n), with jitter, and ``cross`` are replaced by the gradients. With M = (K + W^-1)^-1, alpha = M W^-1 kappa
    and U = M K*, the mean K*' alpha has the gradients alpha and -U alpha', the variance -2 U and U U'.
    """
    count, m = cross.shape
    chains = omega.shape[1]
    root = np.sqrt(omega)
    b = _factored(k, root)
    alpha, u = np.empty((count, 1, chains), np.float32), np.empty((count, m, chains), np.float32)
    for i in range(count):
        target = _HALF * np.float32(sign[i])
        for c in range(chains):
            alpha[i, 0, c] = target / root[i, c]
        for q in range(m):
            for c in range(chains):
                u[i, q, c] = root[i, c] * cross[i, q]
    _forward(b, alpha)
    _backward(b, alpha)
    _forward(b, u)
    mean, variance = np.zeros((m, chains), np.float32), np.full((m, chains), np.float32(scale))
    for i in range(count):
        for c in range(chains):
            alpha[i, 0, c] *= root[i, c]
        for q in range(m):
            for c in range(chains):
                mean[q, c] += alpha[i, 0, c] * cross[i, q]
                variance[q, c] -= u[i, q, c] * u[i, q, c]
    _backward(b, u)
    for i in range(count):
        for q in range(m):
            for c in range(chains):
                u[i, q, c] *= root[i, c]
    loss: float = _expectations(mean, variance, query_sign, at, weight)
    weighted, moved = np.empty((m, chains), np.float32), np.zeros((count, chains), np.float32)
    flat, flat_u = weighted.reshape(-1), u.reshape(count, -1)
    for i in range(count):
        for q in range(m):
            total = np.float32(0)
            for c in range(chains):
                total += mean[q, c] * alpha[i, 0, c] - np.float32(2) * variance[q, c] * u[i, q, c]
                weighted[q, c] = variance[q, c] * u[i, q, c]
                moved[i, c] += mean[q, c] * u[i, q, c]
            cross[i, q] = total
        for j in range(i + 1):  # symmetric, as k is
            total = np.float32(0)
            for at_once in range(m * chains):
                total += flat[at_once] * flat_u[j, at_once]
            for c in range(chains):
                total -= _HALF * (moved[i, c] * alpha[j, 0, c] + moved[j, c] * alpha[i, 0, c])
            k[i, j] = k[j, i] = total
    return loss


@compiled
def tree_loss(
    k: Array,
    signs: Array,
    support: Array,
    normals: Array,
    exponentials: Array,
    chains: int,
    sweeps: int,
    scale: float,
    jitter: float,
    at: Array,
    weight: Array,
    grad: Array,
) -> float:
    """Return the sum of -log p at the nodes ``signs`` (nodes, n) of a tree over samples with covariances ``k`` (n, n).

    At each node the samples outside ``support`` (n,) are predicted from those in it; ``grad`` (n, n) becomes the
    gradient by ``k``. ``normals`` and ``exponentials`` are draws for the nodes, one after the other.
    """
    loss, drawn = 0.0, 0
    for node in range(len(signs)):
        rows = np.flatnonzero((signs[node] != 0) & support)
        queries = np.flatnonzero((signs[node] != 0) & ~support)
        n, m = len(rows), len(queries)
        inner, cross = np.empty((n, n), np.float32), np.empty((n, m), np.float32)
        for i in range(n):
            for j in range(n):
                inner[i, j] = k[rows[i], rows[j]]
            inner[i, i] += np.float32(jitter)
            for q in range(m):
                cross[i, q] = k[rows[i], queries[q]]
        size = sweeps * n * chains
        normal = normals[2 * drawn : 2 * (drawn + size)].reshape(sweeps, 2, n, chains)
        first, last = (TERMS + 1) * drawn, (TERMS + 1) * (drawn + size)
        exponential = exponentials[first:last].reshape(sweeps, TERMS + 1, n, chains)
        drawn += size
        omega = np.full((n, chains), np.float32(0.25))
        gibbs(inner, signs[node][rows], normal, exponential, omega)
        loss += _node(inner, cross, signs[node][rows], signs[node][queries], omega, scale, at, weight)
        for i in range(n):
            for j in range(n):
                grad[rows[i], rows[j]] += inner[i, j]
            for q in range(m):
                grad[rows[i], queries[q]] += cross[i, q]
    return loss
