"""pFedGP in compiled loops: Gibbs sampling, the losses of clients by their trees, and the gradients by embeddings.

``methods/parts/gaussian_process_tree.py`` is the reference. For a small number of samples a call
of LAPACK takes longer than its arithmetic. There chains are lanes of vectors, and the last axis of every array. For
more samples, factors are computed in blocks, for a few chains at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pflcli.accelerated.compiler import Array, compiled
from pflcli.accelerated.elementary import exponential, fill_bits, fill_exponential, fill_normal
from pflcli.accelerated.instructions import as_row, minus_products, products, solve
from pflcli.accelerated.products import product, product_by_rows, transpose
from pflcli.methods.parts.gaussian_process_tree import (
    QUERIES_AT_A_TIME,
    TAIL,
    TERMS,
    Prior,
    draw_key,
    gauss_hermite,
    training_covariance,
)

MAX_LANE_SAMPLES, MAX_LANE_PREDICTIONS = 72, 40
"""Largest number of samples for which Gibbs sampling, and the prediction of as many others, is faster in lanes."""

_MAX_KMEANS_STEPS = 100
"""Largest number of steps of k-means, see ``gaussian_process_tree.py``."""

_HALF, _ONE, _TWO = (np.float32(value) for value in (0.5, 1, 2))


@compiled
def cholesky(b: Array) -> None:
    """Replace the square of ``b`` (n + m, n, chains) by its Cholesky factors L, whose diagonals are inverted.

    Only the lower half of the square is read. Each of the m rows below the square becomes L^-1 times the row.
    """
    n, chains = b.shape[1:]
    row = n * chains
    for j in range(n):
        own, to = j * row, j * row + j * chains
        minus_products(j, b, own, row, chains, b, own, chains, b, to, row, 1, chains)
        for c in range(chains):
            b[j, j, c] = _ONE / math.sqrt(b[j, j, c])
        solve(j, b, own + row, row, chains, b, own, chains, b, to + row, row, len(b) - j - 1, chains)


@compiled
def back_substitute_lanes(b: Array) -> None:
    """Replace the rows below the square of ``b`` (n + m, n, chains), after ``cholesky``, by L'^-1 times each."""
    n, chains = b.shape[1:]
    row, first = n * chains, n * n * chains
    for i in range(n - 1, -1, -1):
        # Begin with the last number, so that what was computed last is added last and nothing waits for it.
        known, factors, to = first + row - chains, first - row + i * chains, first + i * chains
        solve(n - 1 - i, b, known, row, -chains, b, factors, -row, b, to, row, len(b) - n, chains)


@compiled
def factor_lanes(wide: Array, columns: int, root: Array, targets: Array) -> Array:
    """Return the factors (n + m, n, chains) of I + W^1/2 K W^1/2 for ``root`` (n, chains), see ``cholesky``.

    The first n columns of ``wide`` are K. The rows below the square are W^1/2 times its other columns, up to
    ``columns``, and ``targets`` (n, chains).
    """
    n, chains = root.shape
    b, ones, row = np.empty((columns + 1, n, chains), np.float32), np.empty(chains, np.float32), n * chains
    flat, roots = as_row(b), as_row(root)
    for c in range(chains):
        ones[c] = _ONE
    for i in range(columns):
        for j in range(min(i + 1, n)):
            place = i * row + j * chains
            if i < n:
                products(wide[i, j], roots, i * chains, roots, j * chains, flat, place, chains)
            else:
                products(wide[j, i], roots, j * chains, ones, 0, flat, place, chains)
        if i < n:
            for c in range(chains):
                b[i, i, c] += _ONE
    last, own = as_row(b[columns]), as_row(targets)
    for e in range(row):
        last[e] = own[e]
    cholesky(b)
    return b


@compiled
def roots_and_targets(labels: Array, omega: Array) -> tuple[Array, Array]:
    """Return W^1/2 and W^-1/2 kappa (n, chains) of samples with ``labels`` (n,), where kappa is half of the labels."""
    root, targets = np.empty_like(omega), np.empty_like(omega)
    flat, flat_omega, flat_targets = as_row(root), as_row(omega), as_row(targets)
    for i in range(len(labels)):
        targets[i] = np.float32(0.5) * np.float32(labels[i])
    for e in range(len(flat)):
        flat[e] = math.sqrt(flat_omega[e])
        flat_targets[e] /= flat[e]
    return root, targets


BLOCK = 16
"""Rows of a block."""

_INVERSE_COLUMNS = 4
"""Columns of an inverse that are computed at the same time."""

_MAX_GROUP_NUMBERS = 1 << 19
"""Numbers of the factors that are computed at the same time: they stay in the cache."""


@compiled
def new_factors(n: int, columns: int, chains: int) -> tuple[Array, Array]:
    """Return memory for U with this number of columns, and for inverses, of each chain."""
    row = -(-columns // BLOCK) * BLOCK
    row += BLOCK if row % 256 == 0 else 0  # avoid rows in the same places of the cache
    return np.empty((chains, n, row), np.float32), np.empty((chains, -(-n // BLOCK), BLOCK, BLOCK), np.float32)


@compiled
def group_size(n: int, columns: int, chains: int) -> int:
    """Return the number of chains of a group: at least four and, if possible, at most 2 MiB together."""
    return max(1, min(chains, max(4, _MAX_GROUP_NUMBERS // (n * columns))))


@compiled
def factor(wide: Array, columns: int, root: Array, last: Array, u: Array, inverses: Array, first_chain: int) -> None:
    """Write the factors of a group of chains, from ``first_chain`` on, into ``u`` (group, n, row).

    The first n columns of ``wide`` are K. To the right of B are W^1/2 times its other columns, up to ``columns``, and
    one column of ``last`` (n, chains). ``root`` (n, chains) are the diagonals of W^1/2. ``inverses`` (group, blocks,
    BLOCK, BLOCK) become the transposed inverses of the blocks on the diagonal of U.
    """
    n = len(wide)
    group, row = len(u), u.shape[2]
    flat, flat_inverses = as_row(u), as_row(inverses)
    block, scale = np.empty((group, BLOCK, row), np.float32), np.empty((group, row), np.float32)
    flat_block = as_row(block)
    for c in range(group):
        for j in range(row):
            scale[c, j] = root[j, first_chain + c] if j < n else _ONE
    for first in range(0, n, BLOCK):
        rows, width = min(BLOCK, n - first), columns + 1 - first
        for c in range(group):
            place, to = c * n * row + first, c * BLOCK * row
            product((rows, width, first), flat, place, 1, row, flat, place, row, flat_block, to, row, 0)
            for i in range(rows):
                own, source, factors = block[c, i], wide[first + i, first:columns], scale[c, first:]
                factor_of_row = factors[i]
                for j in range(len(source)):
                    own[j] = factor_of_row * source[j] * factors[j] - own[j]
                own[i] += _ONE
                own[width - 1] = last[first + i, first_chain + c] - own[width - 1]
        _invert(flat_block, row, flat_inverses, (first // BLOCK) * BLOCK * BLOCK, inverses.shape[1], rows, group)
        for c in range(group):
            inverse = (c * inverses.shape[1] + first // BLOCK) * BLOCK * BLOCK
            place, to = c * BLOCK * row + rows, (c * n + first) * row + first + rows
            size = rows, width - rows, rows
            product(size, flat_inverses, inverse, BLOCK, 1, flat_block, place, row, flat, to, row, 0)


@compiled
def _invert(block: Array, row: int, inverses: Array, to: int, blocks: int, rows: int, group: int) -> None:
    """Write L^-1 into ``inverses``, from ``to`` on, where L L' is the square at the beginning of ``block``."""
    factors, turned = np.empty((rows, rows, group), np.float32), np.zeros((rows, BLOCK, group), np.float32)
    flat, flat_turned = as_row(factors), as_row(turned)
    step, step_turned = rows * group, BLOCK * group
    for j in range(rows):
        transpose(block, j * row, BLOCK * row, flat, j * group, step, group, rows)
    cholesky(factors)
    for i in range(rows):
        for q in range(0, i, _INVERSE_COLUMNS):
            place, of_row, to_row = q * (step_turned + group), i * step + q * group, i * step_turned + q * group
            known, columns = i - q, min(_INVERSE_COLUMNS, i - q)
            solve(
                known,
                flat_turned,
                place,
                group,
                step_turned,
                flat,
                of_row,
                group,
                flat_turned,
                to_row,
                group,
                columns,
                group,
            )
        for c in range(group):
            turned[i, i, c] = factors[i, i, c]
    for i in range(rows):
        transpose(flat_turned, i * step_turned, group, inverses, to + i * BLOCK, blocks * BLOCK * BLOCK, rows, group)


@compiled
def back_substitute(n: int, u: Array, inverses: Array, first_column: int, columns: int) -> None:
    """Replace ``columns`` columns of ``u`` (group, n, row), from ``first_column`` on, by U^-1 times them."""
    group, row = len(u), u.shape[2]
    flat, flat_inverses = as_row(u), as_row(inverses)
    block = np.empty((BLOCK, columns), np.float32)
    flat_block = as_row(block)
    for c in range(group):
        for index in range((n - 1) // BLOCK, -1, -1):
            first = index * BLOCK
            rows, after = min(BLOCK, n - first), min(n, first + BLOCK)
            to = (c * n + first) * row
            place, below, to = to + after, (c * n + after) * row + first_column, to + first_column
            product((rows, columns, n - after), flat, place, row, 1, flat, below, row, flat_block, 0, columns, 0)
            for i in range(rows):
                own, source = block[i], u[c, first + i, first_column:]
                for j in range(len(own)):
                    own[j] = source[j] - own[j]
            inverse = (c * inverses.shape[1] + index) * BLOCK * BLOCK
            size = rows, columns, rows
            product(size, flat_inverses, inverse, 1, BLOCK, flat_block, 0, columns, flat, to, row, 0)


@compiled
def back_substitute_last(u: Array, inverses: Array, column: int, x: Array, first_chain: int) -> None:
    """Write U^-1 times one column of ``u`` (group, n, row) into ``x`` (n, chains), from ``first_chain`` on."""
    group, n = u.shape[:2]
    own, block = np.empty(n, np.float32), np.empty(BLOCK, np.float32)
    for c in range(group):
        for index in range((n - 1) // BLOCK, -1, -1):
            first = index * BLOCK
            rows, after = min(BLOCK, n - first), min(n, first + BLOCK)
            below = own[after:]
            for i in range(rows):
                source, total = u[c, first + i, after:], np.float32(0)
                for p in range(len(below)):
                    total += source[p] * below[p]
                block[i] = u[c, first + i, column] - total
            own[first:after] = 0
            to = own[first:after]
            for p in range(rows):
                inverse = inverses[c, index, p]
                for i in range(rows):
                    to[i] += inverse[i] * block[p]
        for i in range(n):
            x[i, first_chain + c] = own[i]


_SQUARES = np.asarray([2 * math.pi**2 * (k + 0.5) ** 2 for k in range(TERMS)], dtype=np.float32)
_SPREAD, _OFFSET, _SLOPE = (np.float32(value) for value in TAIL)
_FIRST, _LEAST_C, _LEAST_VARIANCE, _MOST_LOGIT = (np.float32(value) for value in (0.25, 0.02, 1e-6, 80))

_BITS_PER_DRAW = 8
"""Random numbers of 32 bits per sample, chain and sweep: two normal and TERMS + 1 exponential ones need all but one."""


_NUMBERS_PER_PASS = 1024
"""Numbers whose expectations are computed at the same time: they stay in the first cache."""


@compiled
def draw(key: Array, first: int, normals: Array, exponentials: Array) -> None:
    """Write the random numbers of a sweep, (2, size) and (TERMS + 1, size), of ``key`` (2,) from counter ``first``."""
    size = normals.shape[1]
    bits = np.empty((_BITS_PER_DRAW, size), np.uint32)
    fill_bits(key, first, bits[:4])
    fill_bits(key, first + size, bits[4:])
    fill_normal(bits[0], bits[1], normals[0], normals[1])
    fill_exponential(as_row(bits[2 : TERMS + 3]), as_row(exponentials))


@compiled
def polya_gamma(f: Array, draws: Array, omega: Array) -> None:
    """Write draws from PG(1, f) for each number of ``f`` into ``omega``, see ``draw_polya_gamma``."""
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
def gibbs(
    wide: Array, labels: Array, key: Array, first: int, chains: int, sweeps: int, max_lane_samples: int
) -> tuple[Array, int]:
    """Return omega (n, chains) after Gibbs sampling, and the next counter of the random numbers.

    The samples have ``labels``; their covariances are the first n columns of ``wide``. ``key`` and the counter
    ``first`` determine the draws. Up to ``max_lane_samples`` samples are computed in lanes.
    """
    n, row = wide.shape
    size, lower, covariances = (n, chains, n), as_row(_prior_factor(wide)), as_row(wide)
    omega, root = np.empty((n, chains), np.float32), np.empty((n, chains), np.float32)
    f, right = np.empty((n, chains), np.float32), np.empty((n, chains), np.float32)
    normals, exponentials = np.empty((2, n * chains), np.float32), np.empty((TERMS + 1, n * chains), np.float32)
    flat, flat_root, flat_normals, flat_omega = as_row(f), as_row(root), as_row(normals), as_row(omega)
    flat_right = as_row(right)
    step = group_size(n, n, chains)
    u, inverses = new_factors(n, n + 1 if n > max_lane_samples else 0, step)
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
        if n > max_lane_samples:
            for chain in range(0, chains, step):
                of_group = min(step, chains - chain)
                factor(wide, n, root, right, u[:of_group], inverses[:of_group], chain)
                back_substitute_last(u[:of_group], inverses[:of_group], n, right, chain)
        else:
            b = factor_lanes(wide, n, root, right)
            back_substitute_lanes(b)
            flat_right = as_row(b[n])
        products(_ONE, flat_root, 0, flat_right, 0, flat_right, 0, n * chains)
        product(size, covariances, 0, row, 1, flat_right, 0, chains, flat, 0, chains, 1)
        polya_gamma(flat, exponentials, flat_omega)
    return omega, first


@compiled
def _prior_factor(wide: Array) -> Array:
    """Return the lower Cholesky factor (n, n) of the first n columns, computed in float64."""
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
    """Write E[sigmoid(s f)], f ~ N(``mean``, ``variance``), into ``value``; all are (q, chains), s is ``sign`` (q,).

    Replace means and variances by the derivatives by them. ``at`` and ``weight`` are the nodes and weights of a
    quadrature.
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
    for first in range(0, queries * chains, _NUMBERS_PER_PASS):
        last = first + _NUMBERS_PER_PASS
        center, width, p = flat_mean[first:last], flat_spread[first:last], flat_value[first:last]
        slope, moment = flat_by_mean[first:last], flat_by_spread[first:last]
        for e in range(len(center)):
            p[e] = slope[e] = moment[e] = 0
        for point in range(len(at)):  # they are symmetric about zero, so they need no sign
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


_SYMMETRIC_ROWS = 32
"""Rows of a symmetric product that are computed from the same column on."""


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
def loss_in_lanes(wide: Array, labels: Array, omega: Array, scale: float, at: Array, weight: Array) -> float:
    """Return the loss of the predicted samples, and replace ``wide`` by its gradient.

    With M = (K + W^-1)^-1, alpha = M W^-1 kappa and U = M K*, the mean K*' alpha has the gradients alpha and -U alpha',
    the variance -2 U and U U'.
    """
    n = len(omega)
    root, targets = roots_and_targets(labels[:n], omega)
    b = factor_lanes(wide, len(labels), root, targets)
    mean, variance = _moments_in_lanes(b, np.float32(scale))
    result: float = loss(mean, variance, labels[n:], at, weight)
    back_substitute_lanes(b)
    _gradient_in_lanes(b, as_row(root), as_row(mean), as_row(variance), wide)
    return result


@compiled
def _moments_in_lanes(b: Array, scale: float) -> tuple[Array, Array]:
    """Return the means and variances (m, chains) of f, given the factors ``b`` (n + m + 1, n, chains).

    Below its square are R' = (L^-1 W^1/2 K*)' and r = L^-1 W^-1/2 kappa. The mean is R'r, the variance ``scale`` minus
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
def _gradient_in_lanes(b: Array, root: Array, by_mean: Array, by_variance: Array, wide: Array) -> None:
    """Write the gradient by ``wide``, given those by means and variances (m chains,), after back substitution in ``b``.

    The gradient by K is the product of two matrices with a row per sample. The columns of one are U', alpha', and minus
    the sum of U times the gradients by the means.
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
def factor_and_predict(
    wide: Array, labels: Array, omega: Array, scale: float, keeps: bool
) -> tuple[Array, Array, Array, Array]:
    """Return factors and inverses, see ``factor``, and the means and variances (m, chains) of f.

    Return the factors of all chains if it ``keeps`` them, else those of the last group.
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
    """Write means and variances (m, chains), given the factors ``u`` (group, n, row) of chains from ``first_chain`` on.

    Columns n to n + m are R = U'^-1 W^1/2 K*, and the next one is r = U'^-1 W^-1/2 kappa. The mean is R'r, the variance
    ``scale`` minus the squares of R.
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
    """Replace ``wide`` by the gradient of a loss, given its gradients ``by_mean`` and ``by_variance`` (m, chains)."""
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
        for first in range(0, n, _SYMMETRIC_ROWS):
            size, place = (min(_SYMMETRIC_ROWS, n - first), n - first, m + 2), first * row + first
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
    """Write the rows ``weighted`` whose products with those of ``turned`` (m + 2, n) are the gradient by K of a chain.

    The first m rows of ``turned`` become U', the next one alpha', and the last one is written. ``by_mean`` and
    ``by_variance`` (m, chains) are gradients of the loss. Those by K* are added to ``by_cross`` (m, n).
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


_LEAST_LENGTH = np.float32(1e-12)


@compiled
def mark_support(y: Array) -> Array:
    """Return 1 for the first, third, ... sample of each class in ``y`` (n,), and 0 for the others, (n,)."""
    classes = 0
    for label in y:
        classes = max(classes, label + 1)
    chosen, mask = np.zeros(classes, np.int64), np.zeros(len(y), np.int64)
    for i in range(len(y)):
        chosen[y[i]] = mask[i] = 1 - chosen[y[i]]
    return mask


@compiled
def _gather(k: Array, node: Array, y: Array, support: Array, jitter: float) -> tuple[Array, Array, Array]:
    """Return ``wide``, its columns in ``k``, and labels (n + m,) of the samples below a ``node`` (C,) of the tree.

    The first n columns are those of the samples in ``support`` (size,), which are also the rows. ``y`` (size,) are the
    classes of all samples.
    """
    columns, n = np.empty(len(y), np.int64), 0
    for i in range(len(y)):
        if node[y[i]] != 0 and support[i]:
            columns[n] = i
            n += 1
    count = n
    for i in range(len(y)):
        if node[y[i]] != 0 and not support[i]:
            columns[count] = i
            count += 1
    columns = columns[:count]
    wide, labels = np.empty((n, count), np.float32), np.empty(count, np.int64)
    for j in range(count):
        labels[j] = node[y[columns[j]]]
    for i in range(n):
        own, source = wide[i], k[columns[i]]
        for j in range(count):
            own[j] = source[columns[j]]
        own[i] += np.float32(jitter)
    return wide, columns, labels


@compiled
def _scatter(wide: Array, columns: Array, share: float, k: Array) -> None:
    """Add ``share`` times ``wide`` to the rows and columns of ``k`` from which ``_gather`` took it."""
    for i in range(len(wide)):
        own, target = wide[i], k[columns[i]]
        for j in range(len(columns)):
            target[columns[j]] += share * own[j]


@compiled
def _tree_loss(
    k: Array,
    tree: Array,
    y: Array,
    key: Array,
    chains: int,
    sweeps: int,
    scale: float,
    jitter: float,
    at: Array,
    weight: Array,
    grad: Array,
    max_lane_samples: int,
    max_lane_predictions: int,
) -> float:
    """Return the mean over one half of the samples of -log p, summed over the nodes of a ``tree`` (nodes, C).

    Samples with classes ``y`` (n,) have the covariances ``k`` (n, n); at each node they are predicted from the other
    half. The gradient by ``k`` is added to ``grad`` (n, n).
    """
    result, drawn, support = 0.0, 0, mark_support(y)
    predicted = 0
    for conditions in support:
        predicted += 1 - conditions
    share = 1 / max(1, predicted)
    for node in range(len(tree)):
        wide, columns, labels = _gather(k, tree[node], y, support, jitter)
        if wide.shape[0] == wide.shape[1]:
            continue  # nothing to predict
        omega, drawn = gibbs(wide, labels, key, drawn, chains, sweeps, max_lane_samples)
        if len(wide) <= max_lane_predictions:
            result += loss_in_lanes(wide, labels, omega, scale, at, weight)
        else:
            u, inverses, mean, variance = factor_and_predict(wide, labels, omega, scale, True)
            result += loss(mean, variance, labels[len(wide) :], at, weight)
            gradient(u, inverses, omega, mean, variance, wide)
        _scatter(wide, columns, np.float32(share), grad)
    mean_loss: float = result * share
    return mean_loss


@compiled
def _units(z: Array, n: int, unit: Array) -> Array:
    """Write the first ``n`` rows of ``z``, scaled to length 1, into ``unit`` (n, d), and return their lengths (n,)."""
    lengths = np.empty(n, np.float32)
    for i in range(n):
        total, own, row = np.float32(0), z[i], unit[i]
        for j in range(len(own)):
            total += own[j] * own[j]
        length = max(_LEAST_LENGTH, np.float32(math.sqrt(total)))
        for j in range(len(own)):
            row[j] = own[j] / length
        lengths[i] = length
    return lengths


@compiled
def _covariances(unit: Array, scale: float, length: float) -> Array:
    """Return the kernel ``scale`` exp(-|a - b|^2 / (2 ``length``^2)) of all pairs of rows ``unit`` (n, d), (n, n)."""
    (n, d), rows = unit.shape, as_row(unit)
    k, squares = np.empty((n, n), np.float32), np.empty(n, np.float32)
    product_by_rows((n, n, d), rows, 0, d, rows, 0, d, as_row(k), 0, n, 0)
    for i in range(n):
        squares[i] = k[i, i]
    height, rate = np.float32(scale), np.float32(-1 / (2 * length**2))
    for i in range(n):
        own = k[i]
        for j in range(n):
            apart = squares[i] + squares[j] - _TWO * own[j]
            own[j] = height * exponential(rate * (np.float32(0) if apart < 0 else apart))
    return k


@compiled
def _by_embeddings(by_k: Array, k: Array, unit: Array, lengths: Array, length: float, by_z: Array) -> None:
    """Write the gradient by embeddings into the first rows of ``by_z``, given ``by_k``, which is overwritten.

    The gradient by unit vectors is (B + B') unit plus a multiple of each vector. Only its part orthogonal to the vector
    changes z.
    """
    (n, d), rate = unit.shape, np.float32(1 / length**2)
    for i in range(n):
        own, above = by_k[i], k[i]
        for j in range(i + 1):
            own[j] = by_k[j, i] = rate * above[j] * (own[j] + by_k[j, i])
    product((n, d, n), as_row(by_k), 0, n, 1, as_row(unit), 0, d, as_row(by_z), 0, d, 0)
    for i in range(n):
        own, row, along = by_z[i], unit[i], np.float32(0)
        for j in range(d):
            along += own[j] * row[j]
        for j in range(d):
            own[j] = (own[j] - along * row[j]) / lengths[i]


@compiled
def stack_losses(
    z: Array,
    trees: Array,
    y: Array,
    sizes: Array,
    keys: Array,
    chains: int,
    sweeps: int,
    scale: float,
    length: float,
    jitter: float,
    at: Array,
    weight: Array,
    max_lane_samples: int,
    max_lane_predictions: int,
    by_z: Array,
) -> Array:
    """Return clients' losses (a,) by their ``trees`` (a, nodes, C), and write the gradients ``by_z`` (a, n, d).

    The first ``sizes`` (a,) of a client's embeddings ``z`` (a, n, d) and classes ``y`` (a, n) are its samples. ``keys``
    (a, 2) of 32 bits determine the draws. See ``MAX_LANE_SAMPLES`` for ``max_lane_samples`` and
    ``max_lane_predictions``.
    """
    losses = np.empty(len(z), np.float32)
    for client in range(len(z)):
        n, own = sizes[client], by_z[client]
        unit = np.empty((n, z.shape[2]), np.float32)
        lengths = _units(z[client], n, unit)
        k = _covariances(unit, scale, length)
        by_k = np.zeros((n, n), np.float32)
        losses[client] = _tree_loss(
            k,
            trees[client],
            y[client, :n],
            keys[client],
            chains,
            sweeps,
            scale,
            jitter,
            at,
            weight,
            by_k,
            max_lane_samples,
            max_lane_predictions,
        )
        _by_embeddings(by_k, k, unit, lengths, length, own)
        for i in range(n, len(own)):
            own[i] = 0
    return losses


@compiled
def split_classes(x: Array, draws: Array) -> Array:
    """Return the tree (n - 1, n) of ``build_tree`` over rows ``x`` (n, d), n >= 2.

    ``draws`` (n - 1, restarts, 2) are the draws of ``split`` at each node.
    """
    # Loops, because NumPy's functions on whole arrays would take three seconds to compile.
    n = len(x)
    tree, place, members = np.zeros((n - 1, n), np.int64), np.zeros(n, np.int64), np.empty(n, np.int64)
    depth, row = 1, 0  # depth of a stack of nodes; ``place`` is the position on it of the node of each row
    while depth:
        depth -= 1
        count = 0
        for i in range(n):
            if place[i] == depth:
                members[count] = i
                count += 1
        if count == 1:
            place[members[0]] = -1
            continue
        part = split(x, members[:count], draws[row])
        for i in range(count):
            is_first = part[i] == part[0]
            tree[row, members[i]] = 1 if is_first else -1
            place[members[i]] = depth + 1 if is_first else depth  # the first branch is on top of the stack
        depth, row = depth + 2, row + 1
    return tree


@compiled
def split(x: Array, members: Array, draws: Array) -> Array:
    """Return which of two non-empty parts k-means assigns to each of the rows ``members`` (n,), n >= 2, of ``x``.

    ``draws`` (restarts, 2), uniform in [0, 1), determine the first and the second centre of each run. If all rows are
    equal, they are divided in the middle.
    """
    n = len(members)
    squared, distance = np.zeros((n, n), np.float64), np.zeros((2, n), np.float64)
    best, part, moved = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
    for i in range(n):
        best[i] = 1 if 2 * i >= n else 0
        for j in range(i):
            total = 0.0
            for d in range(x.shape[1]):
                difference = x[members[i], d] - x[members[j], d]
                total += difference * difference
            squared[i, j] = squared[j, i] = total
    least = np.inf
    for run in range(1 if n == 2 else len(draws)):
        first, mass = int(draws[run, 0] * n), 0.0
        for i in range(n):
            mass += squared[first, i]
        if mass == 0:
            break
        second, passed = first, 0.0
        for i in range(n):
            if squared[first, i] > 0 and passed <= draws[run, 1] * mass:
                second = i
            passed += squared[first, i]
        for i in range(n):
            part[i] = 1 if squared[second, i] < squared[first, i] else 0
        for _ in range(_MAX_KMEANS_STEPS):
            _distances(squared, part, distance)
            changes, size = 0, 0
            for i in range(n):
                moved[i] = 1 if distance[1, i] < distance[0, i] else 0
                changes += moved[i] != part[i]
                size += moved[i]
            if changes == 0 or not 0 < size < n:
                break
            part, moved = moved, part
        inertia = 0.0
        for i in range(n):
            inertia += distance[part[i], i]
        if inertia < least:
            best, part, least = part, best, inertia
    return best


@compiled
def _distances(squared: Array, part: Array, distance: Array) -> None:
    """Write the squared distances (2, n) of rows from the means of both parts, given those between rows (n, n)."""
    n = len(part)
    for side in range(2):
        size, within = 0, 0.0
        for i in range(n):
            distance[side, i] = 0
        for j in range(n):
            if part[j] == side:
                size += 1
                for i in range(n):
                    distance[side, i] += squared[i, j]
                    if part[i] == side:
                        within += squared[i, j]
        for i in range(n):
            distance[side, i] = distance[side, i] / size - within / (2 * size * size)


def losses_and_gradients(
    prior: Prior, trees: Tensor, z: Tensor, y: Tensor, sizes: Sequence[int], rngs: Sequence[np.random.Generator]
) -> tuple[Tensor, Tensor]:
    """Do the same as the function of this name in ``methods/parts/gaussian_process_tree.py``."""
    embeddings, labels, of_clients = (value.contiguous().numpy() for value in (z.float(), y, trees))
    at, weight = gauss_hermite()
    by_z, keys = torch.empty(z.shape), np.stack([draw_key(rng) for rng in rngs])
    losses = stack_losses(
        embeddings,
        of_clients,
        labels,
        np.asarray(sizes),
        keys,
        prior.chains,
        prior.sweeps,
        prior.scale,
        prior.length,
        prior.jitter,
        at,
        weight,
        MAX_LANE_SAMPLES,
        MAX_LANE_PREDICTIONS,
        by_z.numpy(),
    )
    return torch.from_numpy(losses).to(z), by_z.to(z)


def predict_positive(prior: Prior, z: Tensor, sign: Tensor, queries: Tensor, rng: np.random.Generator) -> Tensor:
    """Do the same as the function of this name in ``methods/parts/gaussian_process_tree.py``."""
    labels, k, p = sign.numpy(), training_covariance(prior, z), []
    omega, _ = gibbs(k.numpy(), labels, draw_key(rng), 0, prior.chains, prior.sweeps, MAX_LANE_SAMPLES)
    # Each part factors the samples' covariances again.
    for part in torch.split(queries, max(QUERIES_AT_A_TIME, 2 * len(z))):
        wide = torch.cat([k, prior.kernel(z, part)], dim=1)
        *_, mean, variance = factor_and_predict(wide.numpy(), labels, omega, prior.scale, False)
        value = np.empty_like(mean)
        expect(mean, variance, np.ones(len(part), np.int64), *gauss_hermite(), value)
        p.append(value.mean(axis=1, dtype=np.float64))
    return torch.from_numpy(np.concatenate(p))
