"""Compiled loops that draw from the posterior of Gaussian processes, and expect sigmoids under it.

``gaussian_process.py`` has the formulas. Chains stand last in every array.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.accelerated.compiler import compiled
from pflcli.accelerated.elementary import exponential, fill_bits, fill_exponential, fill_normal
from pflcli.accelerated.gp.gaussian_process_blocks import back_substitute_last, factor, group_size, new_factors
from pflcli.accelerated.gp.gaussian_process_lanes import back_substitute, factored
from pflcli.accelerated.lanes import products
from pflcli.accelerated.products import product
from pflcli.accelerated.vectors import as_row
from pflcli.methods.parts.gaussian_process import REST, TERMS

Array = NDArray[Any]

_HALF, _ONE = np.float32(0.5), np.float32(1)
_SQUARES = np.asarray([2 * math.pi**2 * (k + 0.5) ** 2 for k in range(TERMS)], dtype=np.float32)
_SPREAD, _OFFSET, _SLOPE = (np.float32(value) for value in REST)
_FIRST, _LEAST_C, _LEAST_VARIANCE, _MOST_LOGIT = (np.float32(value) for value in (0.25, 0.02, 1e-6, 80))

_BITS = 8
"""Random numbers of 32 bits per sample, chain and sweep: for two normal and TERMS + 1 exponential ones, one is left."""


_NUMBERS = 1024
"""Numbers whose expectations are computed at a time: they stay in the first cache."""


@compiled
def draw(key: Array, first: int, normals: Array, exponentials: Array) -> None:
    """Write the random numbers of a sweep, (2, size) and (TERMS + 1, size), those of ``key`` (2,) from ``first`` on."""
    size = normals.shape[1]
    bits = np.empty((_BITS, size), np.uint32)
    fill_bits(key, first, bits[:4])
    fill_bits(key, first + size, bits[4:])
    fill_normal(bits[0], bits[1], normals[0], normals[1])
    fill_exponential(as_row(bits[2 : TERMS + 3]), as_row(exponentials))


@compiled
def polya_gamma(f: Array, draws: Array, omega: Array) -> None:
    """Write draws from PG(1, f) into ``omega``, of as many values as ``f``, see ``gaussian_process.polya_gamma``."""
    for i in range(len(f)):
        size = max(abs(f[i]), _LEAST_C)
        decay = exponential(-size)
        half_square = _HALF * size * size
        rest = (_ONE - decay) / ((_ONE + decay) * (size + size))
        total = np.float32(0)
        for term in range(TERMS):
            share = _ONE / (_SQUARES[term] + half_square)
            total += draws[term, i] * share
            rest -= share
        root = math.sqrt(_OFFSET + _SLOPE * size * size)
        rest += _SPREAD / (root * math.sqrt(root)) * (draws[TERMS, i] - _ONE)
        omega[i] = total + max(rest, np.float32(0))


@compiled
def gibbs(wide: Array, labels: Array, key: Array, first: int, chains: int, sweeps: int, few: int) -> tuple[Array, int]:
    """Return omega (n, chains) of samples whose covariances are the first n columns of ``wide``, with their ``labels``.

    And the number after the last that was drawn with ``key``, from ``first`` on. Up to ``few`` samples take lanes.
    """
    n, row = wide.shape
    size, lower, covariances = (n, chains, n), as_row(_prior_factor(wide)), as_row(wide)
    omega, root = np.empty((n, chains), np.float32), np.empty((n, chains), np.float32)
    f, right = np.empty((n, chains), np.float32), np.empty((n, chains), np.float32)
    normals, exponentials = np.empty((2, n * chains), np.float32), np.empty((TERMS + 1, n * chains), np.float32)
    flat, flat_root, flat_normals, flat_omega = as_row(f), as_row(root), as_row(normals), as_row(omega)
    flat_right = as_row(right)
    step = group_size(n, n, chains)
    u, inverses = new_factors(n, n + 1 if n > few else 0, step)
    targets = np.empty(n * chains, np.float32)
    for e in range(len(targets)):
        flat_omega[e], targets[e] = _FIRST, _HALF * np.float32(labels[e // chains])
    for _ in range(sweeps):
        draw(key, first, normals, exponentials)
        flat_right = as_row(right)
        first += 2 * n * chains
        product(size, lower, 0, n, 1, flat_normals, 0, chains, flat, 0, chains, 0)
        noise = normals[1]
        for e in range(len(targets)):
            flat_root[e] = math.sqrt(flat_omega[e])
            flat_right[e] = targets[e] / flat_root[e] - flat_root[e] * flat[e] - noise[e]
        if n > few:
            for chain in range(0, chains, step):
                of_group = min(step, chains - chain)
                factor(wide, n, root, right, u[:of_group], inverses[:of_group], chain)
                back_substitute_last(u[:of_group], inverses[:of_group], n, right, chain)
        else:
            b = factored(wide, n, root, right)
            back_substitute(b)
            flat_right = as_row(b[n])
        products(_ONE, flat_root, 0, flat_right, 0, flat_right, 0, n * chains)
        product(size, covariances, 0, row, 1, flat_right, 0, chains, flat, 0, chains, 1)
        polya_gamma(flat, exponentials, flat_omega)
    return omega, first


@compiled
def _prior_factor(wide: Array) -> Array:
    """Return the lower factor (n, n) of the first n columns, computed in float64, see ``gaussian_process.gibbs``."""
    n = len(wide)
    exact, lower = np.zeros((n, n), np.float64), np.zeros((n, n), np.float32)
    for i in range(n):
        own = exact[i]
        for j in range(i + 1):
            other, total = exact[j], np.float64(wide[i, j])
            for p in range(j):
                total -= own[p] * other[p]
            own[j] = math.sqrt(total) if i == j else total / other[j]
            lower[i, j] = own[j]
    return lower


@compiled
def expect(mean: Array, variance: Array, sign: Array, at: Array, weight: Array, value: Array) -> None:
    """Write E[sigmoid(s f)], f ~ N(``mean``, ``variance``), into ``value``; all (q, chains), ``sign`` (q,).

    Means and variances are replaced by its derivatives by them. ``at`` and ``weight`` are those of a quadrature.
    """
    queries, chains = mean.shape
    size = queries, chains
    spread, by_mean, by_spread = np.empty(size, np.float32), np.empty(size, np.float32), np.empty(size, np.float32)
    for q in range(queries):
        s = np.float32(sign[q])
        for c in range(chains):
            mean[q, c] *= s
            spread[q, c] = math.sqrt(np.float32(2) * max(variance[q, c], _LEAST_VARIANCE))
    flat_mean, flat_spread, flat_value = as_row(mean), as_row(spread), as_row(value)
    flat_by_mean, flat_by_spread = as_row(by_mean), as_row(by_spread)
    for first in range(0, queries * chains, _NUMBERS):
        last = first + _NUMBERS
        center, width, p = flat_mean[first:last], flat_spread[first:last], flat_value[first:last]
        slope, moment = flat_by_mean[first:last], flat_by_spread[first:last]
        for e in range(len(center)):
            p[e] = slope[e] = moment[e] = 0
        for point in range(len(at)):  # they lie symmetrically about zero, so that s may stay off them
            place, share = at[point], weight[point]
            for e in range(len(center)):
                decay = exponential(min(max(-center[e] - width[e] * place, -_MOST_LOGIT), _MOST_LOGIT))
                sigmoid = share / (_ONE + decay)
                by_logit = sigmoid * decay / (_ONE + decay)
                p[e] += sigmoid
                slope[e] += by_logit
                moment[e] += by_logit * place
    for q in range(queries):
        s = np.float32(sign[q])
        for c in range(chains):
            mean[q, c] = s * by_mean[q, c]
            is_clamped = variance[q, c] < _LEAST_VARIANCE
            variance[q, c] = np.float32(0) if is_clamped else by_spread[q, c] / spread[q, c]
