"""A binary tree over a client's classes, by which two-class classifiers classify many classes.

Achituve et al. (2021), https://arxiv.org/abs/2106.15482, section 4: k-means with two centres splits the classes' mean
embeddings, and the parts again, down to single classes. A tree is a matrix over the federation's C classes with a row
for each inner node: +1 and -1 for the classes of its two branches, 0 for those that are not below it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.engine import backend

_STEPS = 100
"""Most steps of k-means, which otherwise ends when no row moves."""

_RESTARTS = 10
"""Number of k-means runs, of which the split with the least inertia is kept. Centres begin at two rows, the second
drawn by its squared distance from the first (k-means++, Arthur & Vassilvitskii 2007)."""


def build(z: NDArray[np.float32], y: NDArray[np.int64], classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the tree (max(C - 1, 0), C) over the classes of samples ``z`` (n, d), ``y`` (n,); unused rows are zero.

    The root is row 0, and a node comes before those below it. Branch +1 holds the smallest class of the node.
    """
    tree = np.zeros((max(classes - 1, 0), classes), dtype=np.int64)
    present, place = np.unique(y, return_inverse=True)
    if len(present) > 1:
        means = (place == np.arange(len(present))[:, None]).astype(np.float64) @ z.astype(np.float64)
        means /= np.bincount(place)[:, None]
        draws = rng.random((len(present) - 1, _RESTARTS, 2))
        nodes = splits(means, draws)
        tree[: len(nodes), present] = nodes
    return tree


@backend.accelerated("pfedgp")
def splits(x: NDArray[np.float64], draws: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the tree (n - 1, n) over rows ``x`` (n, d), n >= 2.

    ``draws`` (n - 1, restarts, 2) are those of ``split`` at each node.
    """
    tree = np.zeros((len(x) - 1, len(x)), np.int64)
    waiting, row = [np.arange(len(x))], 0
    while waiting:
        members = waiting.pop()
        if len(members) > 1:
            part = split(x[members], draws[row])
            first = part == part[0]
            tree[row, members] = np.where(first, 1, -1)
            waiting += [members[~first], members[first]]
            row += 1
    return tree


def split(x: NDArray[np.float64], draws: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return to which of two parts, neither empty, k-means assigns each of the rows ``x`` (n, d), n >= 2.

    ``draws`` (restarts, 2) are uniform in [0, 1): the first centre of each run, and the second. If all rows are equal,
    they are cut in the middle.
    """
    n = len(x)
    squared = np.square(x[:, None] - x).sum(axis=2)
    best, least = (2 * np.arange(n) >= n).astype(np.int64), np.inf
    for first_draw, second_draw in draws[: 1 if n == 2 else None]:
        first = int(first_draw * n)
        mass = squared[first].sum()
        if mass == 0:
            break
        before = np.cumsum(squared[first]) - squared[first]
        second = np.flatnonzero((squared[first] > 0) & (before <= second_draw * mass))[-1]
        part = (squared[second] < squared[first]).astype(np.int64)
        for _ in range(_STEPS):
            distance = _distances(squared, part)
            moved = (distance[1] < distance[0]).astype(np.int64)
            if (moved == part).all() or not 0 < moved.sum() < n:
                break
            part = moved
        inertia = distance[part, np.arange(n)].sum()
        if inertia < least:
            best, least = part, inertia
    return best


def _distances(squared: NDArray[np.float64], part: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the squared distances (2, n) of rows from the means of both parts, by those between rows (n, n)."""
    sides = [part == side for side in (0, 1)]
    return np.stack([squared[:, s].mean(axis=1) - squared[np.ix_(s, s)].mean() / 2 for s in sides])


def leaves(tree: Tensor, positive: Tensor, count: Tensor) -> Tensor:
    """Return the probabilities (q, C) of all classes: the products of the branches on the way to each leaf.

    ``positive`` (q, nodes) is the probability of branch +1 at each row of ``tree`` (nodes, C). Classes without any of
    the client's n samples, ``count`` (C,), get 1 / (n + C) each, by the rule of succession; the leaves share the rest.
    Without samples all classes have the same probability.
    """
    p = positive[:, :, None]
    product = torch.where(tree > 0, p, torch.where(tree < 0, 1 - p, 1.0)).prod(dim=1)
    absent = count == 0
    absent_share = 1 / (count.sum() + len(count))
    return torch.where(absent, absent_share, product * (1 - absent_share * absent.sum()))


def stratified(y: NDArray[np.int64], size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return sorted indices of at most ``size`` samples: of each class its share, at least one if that fits."""
    if len(y) <= size:
        return np.arange(len(y))
    order = rng.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    # The samples of a class are spread evenly over [0, 1); its first is at 0, so that every class is kept.
    count = np.bincount(y)
    rank = np.arange(len(y)) - np.repeat(np.cumsum(count) - count, count)
    first = np.argsort(rank / count[y[order]], kind="stable")[:size]
    return np.sort(order[first])
