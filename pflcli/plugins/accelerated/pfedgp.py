"""pFedGP in compiled loops: Gibbs sampling, and the trees of classes by k-means.

``methods/parts/gaussian_process_tree.py`` is the reference. For a small number of samples a call of LAPACK takes longer
than its arithmetic. Here chains are lanes of vectors, and the last axis of every array.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pflcli.methods.parts.gaussian_process_tree import TAIL, TERMS, Draws, Prior
from pflcli.plugins.accelerated.compiler import Array, compiled
from pflcli.plugins.accelerated.elementary import exponential, fill_bits, fill_exponential, fill_normal
from pflcli.plugins.accelerated.instructions import as_row, minus_products, products, solve
from pflcli.plugins.accelerated.products import product

_MAX_KMEANS_STEPS = 100
"""Largest number of steps of k-means, see ``gaussian_process_tree.py``."""

_HALF, _ONE = np.float32(0.5), np.float32(1)


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
def back_substitute(b: Array) -> None:
    """Replace the rows below the square of ``b`` (n + m, n, chains), after ``cholesky``, by L'^-1 times each."""
    n, chains = b.shape[1:]
    row, first = n * chains, n * n * chains
    for i in range(n - 1, -1, -1):
        # Begin with the last number, so that what was computed last is added last and nothing waits for it.
        known, factors, to = first + row - chains, first - row + i * chains, first + i * chains
        solve(n - 1 - i, b, known, row, -chains, b, factors, -row, b, to, row, len(b) - n, chains)


@compiled
def factor(k: Array, root: Array, targets: Array) -> Array:
    """Return the factors (n + 1, n, chains) of I + W^1/2 K W^1/2 for ``root`` (n, chains), see ``cholesky``.

    K is ``k`` (n, n). The row below the square is that of ``targets`` (n, chains).
    """
    n, chains = root.shape
    b, row = np.empty((n + 1, n, chains), np.float32), n * chains
    flat, roots = as_row(b), as_row(root)
    for i in range(n):
        for j in range(i + 1):
            products(k[i, j], roots, i * chains, roots, j * chains, flat, i * row + j * chains, chains)
        for c in range(chains):
            b[i, i, c] += _ONE
    last, own = as_row(b[n]), as_row(targets)
    for e in range(row):
        last[e] = own[e]
    cholesky(b)
    return b


_SQUARES = np.asarray([2 * math.pi**2 * (k + 0.5) ** 2 for k in range(TERMS)], dtype=np.float32)
_SPREAD, _OFFSET, _SLOPE = (np.float32(value) for value in TAIL)
_FIRST, _LEAST_C = (np.float32(value) for value in (0.25, 0.02))

_BITS_PER_DRAW = 8
"""Random numbers of 32 bits per sample, chain and sweep: two normal and TERMS + 1 exponential ones need all but one."""


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
def gibbs(k: Array, labels: Array, key: Array, first: int, chains: int, sweeps: int) -> Array:
    """Return omega (n, chains) after Gibbs sampling of samples with ``labels`` (n,) and the covariances ``k`` (n, n).

    ``key`` and the counter ``first`` determine the draws.
    """
    n = len(k)
    size, lower, covariances = (n, chains, n), as_row(_prior_factor(k)), as_row(k)
    omega, root = np.empty((n, chains), np.float32), np.empty((n, chains), np.float32)
    f, right = np.empty((n, chains), np.float32), np.empty((n, chains), np.float32)
    normals, exponentials = np.empty((2, n * chains), np.float32), np.empty((TERMS + 1, n * chains), np.float32)
    flat, flat_root, flat_normals, flat_omega = as_row(f), as_row(root), as_row(normals), as_row(omega)
    flat_right = as_row(right)
    targets = np.empty(n * chains, np.float32)
    for e in range(len(targets)):
        flat_omega[e], targets[e] = _FIRST, _HALF * np.float32(labels[e // chains])
    for _ in range(sweeps):
        draw(key, first, normals, exponentials)
        first += 2 * n * chains
        product(size, lower, 0, n, 1, flat_normals, 0, chains, flat, 0, chains, 0)
        noise = normals[1]
        for e in range(len(targets)):
            flat_root[e] = math.sqrt(flat_omega[e])
            flat_right[e] = targets[e] / flat_root[e] - flat_root[e] * flat[e] - noise[e]
        b = factor(k, root, right)
        back_substitute(b)
        solved = as_row(b[n])
        products(_ONE, flat_root, 0, solved, 0, solved, 0, n * chains)
        product(size, covariances, 0, n, 1, solved, 0, chains, flat, 0, chains, 1)
        polya_gamma(flat, exponentials, flat_omega)
    return omega


@compiled
def _prior_factor(k: Array) -> Array:
    """Return the lower Cholesky factor (n, n) of ``k`` (n, n), computed in float64."""
    n = len(k)
    exact, lower = np.zeros((n, n), np.float64), np.zeros((n, n), np.float32)
    for i in range(n):
        own = exact[i]
        for j in range(i + 1):
            other, total = exact[j], np.float64(k[i, j])
            for p in range(j):
                total -= own[p] * other[p]
            own[j] = math.sqrt(total) if i == j else total / other[j]
            lower[i, j] = own[j]
    return lower


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


def run_gibbs(prior: Prior, k: Tensor, sign: Tensor, sizes: Sequence[int], draws: Sequence[Draws]) -> Tensor:
    """Do the same as the function of this name in ``methods/parts/gaussian_process_tree.py``."""
    omega = np.ones((len(k), prior.chains, k.shape[1]), np.float32)
    for into, all_k, labels, n, own in zip(omega, k.numpy(), sign.numpy(), sizes, draws, strict=True):
        covariances = np.ascontiguousarray(all_k[:n, :n])
        into[:, :n] = gibbs(covariances, labels[:n], own.key, own.used, prior.chains, prior.sweeps).T
    return torch.from_numpy(omega)
