"""Compiled loops of pFedGP: the losses of a stack of clients by their trees, and the gradients by their embeddings.

``tree_likelihood.py`` says what they are, ``pfedgp_loops.py`` has what happens at a node.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.accelerated.compiler import compiled
from pflcli.accelerated.elementary import exponential
from pflcli.accelerated.gp.gibbs_loops import gibbs
from pflcli.accelerated.gp.pfedgp_loops import few_samples, gradient, loss, reduced
from pflcli.accelerated.products import product, product_by_rows
from pflcli.accelerated.vectors import as_row

Array = NDArray[Any]

_LEAST_LENGTH, _TWO = np.float32(1e-12), np.float32(2)


@compiled
def halves(y: Array) -> Array:
    """Return for each sample (n,) 1 if it is a first, third, ... of its class ``y`` (n,), else 0."""
    classes = 0
    for label in y:
        classes = max(classes, label + 1)
    chosen, mask = np.zeros(classes, np.int64), np.zeros(len(y), np.int64)
    for i in range(len(y)):
        chosen[y[i]] = mask[i] = 1 - chosen[y[i]]
    return mask


@compiled
def _gather(k: Array, node: Array, y: Array, support: Array, jitter: float) -> tuple[Array, Array, Array]:
    """Return ``wide``, its columns of ``k``, and labels (n + m,) for the samples below a ``node`` (C,) of the tree.

    Of samples with classes ``y`` (size,) those in ``support`` (size,) are given. The first n columns are the rows, too.
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
    """Add a ``share`` of ``wide`` to the rows and columns of ``k`` that ``_gather`` has taken."""
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
    few: int,
    few_predicting: int,
) -> float:
    """Return the mean over one half of the samples of -log p, summed over the nodes of a ``tree`` (nodes, C).

    Samples with classes ``y`` (n,) have the covariances ``k`` (n, n); at each node they are predicted from the other
    half. The gradient by ``k`` is added to ``grad`` (n, n).
    """
    result, drawn, support = 0.0, 0, halves(y)
    predicted = 0
    for conditions in support:
        predicted += 1 - conditions
    share = 1 / max(1, predicted)
    for node in range(len(tree)):
        wide, columns, labels = _gather(k, tree[node], y, support, jitter)
        if wide.shape[0] == wide.shape[1]:
            continue  # nothing to predict
        omega, drawn = gibbs(wide, labels, key, drawn, chains, sweeps, few)
        if len(wide) <= few_predicting:
            result += few_samples(wide, labels, omega, scale, at, weight)
        else:
            u, inverses, mean, variance = reduced(wide, labels, omega, scale, True)
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
    """Write the gradient by embeddings into the first rows of ``by_z``, for that by covariances, which is replaced.

    Of the gradient by unit vectors, (B + B') unit and a multiple of each, what is along them does not reach z.
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
    few: int,
    few_predicting: int,
    by_z: Array,
) -> Array:
    """Return clients' losses (a,) by their ``trees`` (a, nodes, C), and write the gradients ``by_z`` (a, n, d).

    Of each client the first ``sizes`` (a,) of embeddings ``z`` (a, n, d) and classes ``y`` (a, n) count. ``keys`` (a,
    2) of 32 bits each determine the draws. Gibbs sampling takes lanes for up to ``few`` samples, predicting for up to
    ``few_predicting``; for more both take blocks.
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
            few,
            few_predicting,
        )
        _by_embeddings(by_k, k, unit, lengths, length, own)
        for i in range(n, len(own)):
            own[i] = 0
    return losses
