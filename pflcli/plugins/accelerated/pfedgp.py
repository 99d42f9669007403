"""pFedGP in compiled loops: Gibbs sampling, and the losses of nodes with their gradients.

``methods/parts/gaussian_process_tree.py`` is the reference. For a small number of samples a call of LAPACK takes longer
than its arithmetic. Here chains are lanes of vectors, and the last axis of every array.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pflcli.methods.parts.gaussian_process_tree import TAIL, TERMS, Draws, Node, Prior, gauss_hermite
from pflcli.plugins.accelerated.compiler import Array, compiled
from pflcli.plugins.accelerated.elementary import exponential, fill_bits, fill_exponential, fill_normal
from pflcli.plugins.accelerated.instructions import as_row, minus_products, products, solve
from pflcli.plugins.accelerated.products import product, product_by_rows

_HALF, _ONE = np.float32(0.5), np.float32(1)
_POINTS, _WEIGHTS = gauss_hermite()
_LEAST_VARIANCE, _TINY = np.float32(1e-6), np.finfo(np.float32).tiny


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
    """Return the factors (n + m, n, chains) of I + W^1/2 K W^1/2 for ``root`` (n, chains), see ``cholesky``.

    K is ``k`` (n, n). The rows below the square are those of ``targets`` (m, n, chains).
    """
    n, chains = root.shape
    b, row = np.empty((n + len(targets), n, chains), np.float32), n * chains
    flat, roots = as_row(b), as_row(root)
    for i in range(n):
        for j in range(i + 1):
            products(k[i, j], roots, i * chains, roots, j * chains, flat, i * row + j * chains, chains)
        for c in range(chains):
            b[i, i, c] += _ONE
    below, own = as_row(b[n:]), as_row(targets)
    for e in range(len(own)):
        below[e] = own[e]
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
    f, right = np.empty((n, chains), np.float32), np.empty((1, n, chains), np.float32)
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
def solve_moments(k: Array, cross: Array, labels: Array, omega: Array) -> Array:
    """Return an array (n + q + 1, n, chains) that ends with A (q, n, chains) and w (1, n, chains), see ``_Moments``.

    ``k`` (n, n) are the covariances of the samples with ``labels`` (n,), ``cross`` (q, n) those of samples asked for.
    """
    n, chains = omega.shape
    root, right = np.empty((n, chains), np.float32), np.empty((len(cross) + 1, n, chains), np.float32)
    for p in range(n):
        for c in range(chains):
            root[p, c] = math.sqrt(omega[p, c])
            right[len(cross), p, c] = _HALF * np.float32(labels[p]) / root[p, c]
        for i in range(len(cross)):
            for c in range(chains):
                right[i, p, c] = root[p, c] * cross[i, p]
    b: Array = factor(k, root, right)
    back_substitute(b)
    solved, flat_root = as_row(b[n:]), as_row(root)
    for i in range(len(right)):
        products(_ONE, flat_root, 0, solved, i * n * chains, solved, i * n * chains, n * chains)
    return b


@compiled
def differentiate_sigmoid(mean: Array, reduction: Array, scale: float, sign: int) -> float:
    """Return -log E[sigmoid(sign f)] over all chains, and replace the moments (chains,) by its gradients by them.

    The variance of f is ``scale`` minus the ``reduction``. See ``log_expected_sigmoid``.
    """
    chains, s = len(mean), np.float32(sign)
    spread, p, slope, bend = np.empty(chains, np.float32), np.zeros(chains, np.float32), mean * 0, mean * 0
    for c in range(chains):
        spread[c] = math.sqrt(max(scale - reduction[c], _LEAST_VARIANCE) * np.float32(2))
    for t in range(len(_POINTS)):
        for c in range(chains):
            probability = _ONE / (_ONE + exponential(-(s * mean[c] + spread[c] * _POINTS[t])))
            steep = _WEIGHTS[t] * probability * (_ONE - probability)
            p[c] += _WEIGHTS[t] * probability
            slope[c] += steep
            bend[c] += steep * _POINTS[t]
    total = np.float32(0)
    for c in range(chains):
        total += p[c]
    least = chains * _TINY
    by_total = np.float32(0) if total < least else -_ONE / total
    for c in range(chains):
        is_least = scale - reduction[c] < _LEAST_VARIANCE
        reduction[c] = np.float32(0) if is_least else -by_total * bend[c] / spread[c]
        mean[c] = by_total * s * slope[c]
    return -math.log((least if total < least else total) / chains)


@compiled
def node_loss(
    kernel: Array, known: Any, asked: Any, draws: Any, scale: float, jitter: float, by_kernel: Array
) -> float:
    """Return the sum of -log p over the samples that a node asks for; add its gradient to ``by_kernel`` (n, n).

    ``kernel`` (n, n) are the covariances of the client's samples. ``known`` and ``asked`` are rows of it with their
    labels; ``draws`` are the last arguments of ``gibbs``.
    """
    (rows, labels), (columns, signs), (key, first, chains, sweeps) = known, asked, draws
    n, q, width = len(rows), len(columns), (len(columns) + 1) * chains
    k, cross = np.empty((n, n), np.float32), np.empty((q, n), np.float32)
    for p in range(n):
        for r in range(n):
            k[p, r] = kernel[rows[p], rows[r]] + (jitter if p == r else np.float32(0))
        for i in range(q):
            cross[i, p] = kernel[rows[p], columns[i]]
    solved = solve_moments(k, cross, labels, gibbs(k, labels, key, first, chains, sweeps))[n:]
    left, right, loss, last = np.zeros((n, width), np.float32), np.empty((n, width), np.float32), 0.0, q * chains
    for i in range(q):
        mean, reduction = np.zeros(chains, np.float32), np.zeros(chains, np.float32)
        for p in range(n):
            for c in range(chains):
                mean[c] += cross[i, p] * solved[q, p, c]
                reduction[c] += cross[i, p] * solved[i, p, c]
        loss += differentiate_sigmoid(mean, reduction, scale, signs[i])
        for p in range(n):
            by_cross = np.float32(0)
            for c in range(chains):
                a, w = solved[i, p, c], solved[q, p, c]
                weighted = a * reduction[c]
                left[p, i * chains + c], right[p, i * chains + c], right[p, last + c] = weighted, a, w
                left[p, last + c] += a * mean[c]
                by_cross += w * mean[c] + weighted + weighted
            by_kernel[rows[p], columns[i]] += by_cross
    product_by_rows((n, n, width), as_row(left), 0, width, as_row(right), 0, width, as_row(k), 0, n, 0)
    for p in range(n):
        for r in range(n):
            by_kernel[rows[p], rows[r]] -= k[p, r]
    return loss


@compiled
def _nodes_losses(kernel: Array, places: Any, rows: Any, draws: Any, scale: float, jitter: float, by: Array) -> Array:
    """Return ``node_loss`` of each node (N,), whose samples are slices of ``rows``; see ``differentiate_nodes``."""
    (client, known, asked), (at, labels, columns, signs), (keys, used, chains, sweeps) = places, rows, draws
    losses = np.empty(len(client), np.float32)
    for node, own in enumerate(client):
        k, q = slice(known[node], known[node + 1]), slice(asked[node], asked[node + 1])
        drawn = keys[node], used[node], chains, sweeps
        losses[node] = node_loss(kernel[own], (at[k], labels[k]), (columns[q], signs[q]), drawn, scale, jitter, by[own])
    return losses


def differentiate_nodes(prior: Prior, kernel: Tensor, nodes: Sequence[Node]) -> tuple[Tensor, Tensor]:
    """Do the same as the function of this name in ``methods/parts/gaussian_process_tree.py``."""
    by_kernel, names = torch.zeros_like(kernel), ("known", "sign", "asked", "asked_sign")
    at, labels, columns, signs = ([getattr(node, name) for node in nodes] for name in names)
    known, asked = (np.cumsum([0, *map(len, parts)]) for parts in (at, columns))
    places = np.asarray([node.client for node in nodes]), known, asked
    rows = tuple(np.concatenate(parts) for parts in (at, labels, columns, signs))
    keys, used = np.stack([node.draws.key for node in nodes]), np.asarray([node.draws.used for node in nodes])
    scale, jitter = np.float32(prior.scale), np.float32(prior.jitter)
    draws = keys, used, prior.chains, prior.sweeps
    losses = _nodes_losses(kernel.numpy(), places, rows, draws, scale, jitter, by_kernel.numpy())
    return torch.from_numpy(losses), by_kernel


def run_gibbs(prior: Prior, k: Tensor, sign: Tensor, sizes: Sequence[int], draws: Sequence[Draws]) -> Tensor:
    """Do the same as the function of this name in ``methods/parts/gaussian_process_tree.py``."""
    omega = np.ones((len(k), prior.chains, k.shape[1]), np.float32)
    for into, all_k, labels, n, own in zip(omega, k.numpy(), sign.numpy(), sizes, draws, strict=True):
        covariances = np.ascontiguousarray(all_k[:n, :n])
        into[:, :n] = gibbs(covariances, labels[:n], own.key, own.used, prior.chains, prior.sweeps).T
    return torch.from_numpy(omega)
