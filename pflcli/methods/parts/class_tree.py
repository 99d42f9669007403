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

_RESTARTS = 10
"""Number of k-means runs, of which the split with the least inertia is kept."""


def build(z: NDArray[np.float32], y: NDArray[np.int64], classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the tree (max(C - 1, 0), C) over the classes of samples ``z`` (n, d), ``y`` (n,); unused rows are zero.

    The root is row 0, and a node comes before those below it. Branch +1 holds the smallest class of the node.
    """
    tree = np.zeros((max(classes - 1, 0), classes), dtype=np.int64)
    present, place = np.unique(y, return_inverse=True)
    means = (place == np.arange(len(present))[:, None]).astype(np.float64) @ z.astype(np.float64)
    means /= np.bincount(place)[:, None]
    waiting, row = [present], 0
    while waiting:
        node = waiting.pop()
        if len(node) < 2:
            continue
        part = two_means(means[np.searchsorted(present, node)], rng)
        branches = node[part == part[0]], node[part != part[0]]
        for branch, sign in zip(branches, (1, -1), strict=True):
            tree[row, branch] = sign
        row += 1
        waiting += branches[::-1]
    return tree


def two_means(x: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return to which of two parts, neither empty, k-means assigns each row of ``x`` (n, d), n >= 2.

    Centres begin at two rows, the second drawn by its squared distance from the first (k-means++, Arthur &
    Vassilvitskii 2007). If all rows are equal, they are cut in the middle.
    """
    from pflcli.methods.parts import class_split  # here, as Numba takes a second to import

    part: NDArray[np.bool_] = class_split.split(x, rng.random((1 if len(x) == 2 else _RESTARTS, 2)))
    return part


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


def halves(y: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask (n,) of every second sample of each class, from its first."""
    rank = (y == np.arange(y.max(initial=-1) + 1)[:, None]).cumsum(axis=1)[y, np.arange(len(y))]
    return np.asarray(rank % 2 == 1)


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
