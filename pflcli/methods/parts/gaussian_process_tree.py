"""pFedGP's classifier: a binary tree over a client's classes, with a two-class Gaussian process at each inner node.

Achituve et al. (2021), https://arxiv.org/abs/2106.15482, sections 3 and 4. A tree is a matrix over the federation's C
classes with a row for each inner node: +1 and -1 for the classes of its two branches, 0 for classes that are not below
it. k-means with two centres splits the mean embeddings of the classes, and the parts again, down to single classes.

Two-class Gaussian processes use Pólya-Gamma augmentation (Polson, Scott & Windle, 2013,
https://arxiv.org/abs/1205.0310): given omega ~ PG(1, f), the logistic likelihood of a label s = +1 or -1 is Gaussian in
f, so f given omega and omega given f are both drawn in closed form. With kappa = s / 2, W = diag(omega) and B = I +
W^1/2 K W^1/2, (K + W^-1)^-1 = W^1/2 B^-1 W^1/2. B has no eigenvalue below one, however small omega is, while K + W^-1
has no upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.method import backend

_MAX_K_MEANS_STEPS = 100
"""Maximum number of k-means steps; it ends earlier if no row changes its part."""

_K_MEANS_RESTARTS = 10
"""Number of k-means runs, of which the one with the least inertia is kept. The centres start at two rows: the second is
drawn in proportion to its squared distance from the first (k-means++, Arthur & Vassilvitskii, 2007)."""

TERMS = 4
"""Number of terms of the Pólya-Gamma series that are drawn."""

TAIL = (1 / (2 * math.sqrt(3) * math.pi**2), 17.6134, 0.684446 / (4 * math.pi**2))
"""The standard deviation of the other terms is TAIL[0] (TAIL[1] + TAIL[2] c^2)^(-3/4). This fit of the series' tail
changes the variance of a draw by at most 0.4 % for |c| <= 60, and by 0.01 % for |c| <= 2."""

_QUADRATURE_POINTS = 20
"""Number of points of Gauss-Hermite quadrature."""

QUERIES_AT_A_TIME = 256
"""Number of samples that are predicted at a time."""

MAX_COMPILED_SAMPLES = 256
"""Number of samples above which the factors of all chains leave the cache, and LAPACK is faster than compiled loops."""

_LEAST_LENGTH = 1e-12
"""Length by which shorter embeddings are divided."""

_MAX_NUMBERS = 1 << 19
"""Number of values of one tensor that nodes of the same widths have together: they stay in the cache."""


def build_tree(
    z: NDArray[np.float32], y: NDArray[np.int64], classes: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the tree (max(C - 1, 0), C) over the classes of a client's samples ``z`` (n, d), ``y`` (n,)."""
    return np.asarray(build_trees([z], [y], classes, [rng])[0])


def build_trees(
    z: Sequence[NDArray[np.float32]], y: Sequence[NDArray[np.int64]], classes: int, rngs: Sequence[np.random.Generator]
) -> NDArray[np.int64]:
    """Return trees (m, max(C - 1, 0), C) over the classes of the samples ``z`` (n, d), ``y`` (n,) of each client.

    The root is row 0, and a node comes before the nodes below it; unused rows are zero. Branch +1 contains the smallest
    class of the node. Nodes of all clients are split together, those with most classes first.
    """
    trees = np.zeros((len(y), max(classes - 1, 0), classes), np.int64)
    squared, draws = list[NDArray[np.float64]](), list[NDArray[np.float64]]()
    waiting = list[tuple[int, int, NDArray[np.int64], NDArray[np.int64]]]()  # client, row, places in classes, classes
    for client, (points, labels, rng) in enumerate(zip(z, y, rngs, strict=True)):
        present, place = np.unique(labels, return_inverse=True)
        means = (place == np.arange(len(present))[:, None]).astype(np.float64) @ points.astype(np.float64)
        means /= np.bincount(place, minlength=len(present))[:, None]
        squared.append(np.square(means[:, None] - means).sum(axis=2))
        draws.append(rng.random((max(len(present) - 1, 0), _K_MEANS_RESTARTS, 2)))
        waiting += [(client, 0, np.arange(len(present)), present)] if len(present) > 1 else []
    while waiting:
        waiting.sort(key=lambda node: len(node[2]))
        count = max(1, _MAX_NUMBERS // len(waiting[-1][2]) ** 2)
        waiting, together = waiting[:-count], waiting[-count:]
        apart = [squared[client][np.ix_(members, members)] for client, _, members, _ in together]
        parts = split_in_two(apart, np.stack([draws[client][row] for client, row, *_ in together]))
        for (client, row, members, present), part in zip(together, parts, strict=True):
            first = part[: len(members)] == part[0]
            trees[client, row, present[members]] = np.where(first, 1, -1)
            # The nodes of the first branch come next, one fewer than its classes.
            branches = (row + 1, members[first]), (row + int(first.sum()), members[~first])
            waiting += [(client, below, own, present) for below, own in branches if len(own) > 1]
    return trees


def split_in_two(apart: Sequence[NDArray[np.float64]], draws: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return to which of two non-empty parts (b, width) k-means assigns the rows of each of b nodes, padded.

    ``apart`` are the squared distances (n, n) between the rows of a node, n >= 2. ``draws`` (b, restarts, 2), uniform
    in [0, 1), determine the two initial centres of each run. Equal rows are cut in the middle.
    """
    sizes = np.asarray([len(own) for own in apart])[:, None]
    at, node = np.arange(sizes.max()), np.arange(len(apart))[:, None]
    squared, exists = np.zeros((len(apart), len(at), len(at))), (at < sizes)[:, None]
    for into, own in zip(squared, apart, strict=True):
        into[: len(own), : len(own)] = own
    from_first = squared[node, (draws[..., 0] * sizes).astype(np.int64)]  # (b, restarts, width)
    mass = from_first.sum(axis=2)
    before = np.cumsum(from_first, axis=2) - from_first
    is_possible = (from_first > 0) & (before <= (draws[..., 1] * mass)[..., None])
    part = squared[node, len(at) - 1 - is_possible[..., ::-1].argmax(axis=2)] < from_first
    runs = (mass > 0) & ((sizes > 2) | (np.arange(draws.shape[1]) == 0))
    for _ in range(_MAX_K_MEANS_STEPS):
        distance = _squared_distances(squared, np.stack([exists & ~part, part], axis=2))
        moved = (distance[:, :, 1] < distance[:, :, 0]) & exists
        count = moved.sum(axis=2)
        moves = runs & (moved != part).any(axis=2) & (count > 0) & (count < sizes)
        if not moves.any():
            break
        part = np.where(moves[..., None], moved, part)
    inertia = (np.where(part, distance[:, :, 1], distance[:, :, 0]) * exists).sum(axis=2)
    best = np.where(runs, inertia, np.inf).argmin(axis=1)
    return np.asarray(np.where(runs.any(axis=1)[:, None], part[node[:, 0], best], 2 * at >= sizes))


def _squared_distances(squared: NDArray[np.float64], sides: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the squared distances (b, restarts, 2, n) of rows to the means of both ``sides`` (b, restarts, 2, n).

    ``squared`` (b, n, n) are those between rows.
    """
    size = np.maximum(sides.sum(axis=3, keepdims=True), 1)
    sums = (sides.reshape(len(sides), -1, sides.shape[3]) @ squared).reshape(sides.shape)
    return np.asarray(sums / size - (sums * sides).sum(axis=3, keepdims=True) / (2 * size**2))


def class_probabilities(tree: Tensor, positive: Tensor, count: Tensor) -> Tensor:
    """Return the probabilities (q, C) of all classes: the product over the branches from the root to each leaf.

    ``positive`` (q, nodes) is the probability of branch +1 at each row of ``tree`` (nodes, C). ``count`` (C,) are the
    client's n samples of each class. By the rule of succession, a class without samples gets 1 / (n + C); the leaves
    share the rest. Without samples all classes have the same probability.
    """
    p = positive[:, :, None]
    product = torch.where(tree > 0, p, torch.where(tree < 0, 1 - p, 1.0)).prod(dim=1)
    absent = count == 0
    absent_share = 1 / (count.sum() + len(count))
    return torch.where(absent, absent_share, product * (1 - absent_share * absent.sum()))


def draw_stratified(y: NDArray[np.int64], size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw at most ``size`` samples in proportion to class sizes, if possible one or more per class: sorted indices."""
    if len(y) <= size:
        return np.arange(len(y))
    order = rng.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    # Spread the samples of a class evenly over [0, 1), the first at 0, and take the lowest: each class is included.
    count = np.bincount(y)
    rank = np.arange(len(y)) - np.repeat(np.cumsum(count) - count, count)
    first = np.argsort(rank / count[y[order]], kind="stable")[:size]
    return np.sort(order[first])


def losses_and_gradients(
    prior: Prior, trees: Tensor, z: Tensor, y: Tensor, sizes: Sequence[int], rngs: Sequence[np.random.Generator]
) -> tuple[Tensor, Tensor]:
    """Return clients' losses (a,) and their gradients by the embeddings ``z`` (a, n, d), which are scaled to length 1.

    The loss is the mean of -log p over one half of the samples given the other half, at each inner node of ``trees``
    (a, nodes, C) on the way to the class ``y`` (a, n). Only the first ``sizes`` samples of a client count. The draws of
    omega are constants.
    """
    nodes, owner, count = list[Node](), list[int](), np.ones(len(z), np.int64)
    for client, (size, rng) in enumerate(zip(sizes, rngs, strict=True)):
        labels, tree, used = y[client, :size].cpu().numpy(), trees[client].cpu().numpy(), 0
        key, first_half = draw_key(rng), mark_first_halves(labels)
        signs = tree[tree.any(axis=1)][:, labels]  # +1, -1, or 0 for samples that are not below the node
        halves = [np.nonzero((signs != 0) & half) for half in (first_half, ~first_half)]
        cuts = [np.searchsorted(number, np.arange(len(signs) + 1)).tolist() for number, _ in halves]
        for number, sign in enumerate(signs):
            known, asked = (rows[cut[number] : cut[number + 1]] for (_, rows), cut in zip(halves, cuts, strict=True))
            if len(asked):
                nodes.append(Node(known, asked, sign[known], sign[asked], Draws(key, used), client))
                owner.append(client)
                used += prior.counters(len(known))
        count[client] = max((~first_half).sum(), 1)
    losses = z.new_zeros(len(z), dtype=torch.float32)
    if not nodes:
        return losses.to(z), torch.zeros_like(z)
    length = torch.linalg.vector_norm(z.float(), dim=2, keepdim=True).clamp_min_(_LEAST_LENGTH)
    unit = z.float() / length
    kernel = prior.kernel(unit, unit)
    sums, by_kernel = differentiate_nodes(prior, kernel.detach(), nodes)
    losses.index_add_(0, torch.tensor(owner, device=z.device), sums)
    share = 1 / torch.from_numpy(count).to(losses)
    # By hand, in a third of the time: each u_i moves along k_ij (u_j - u_i), and only across itself.
    pull = (by_kernel + by_kernel.mT).mul_(kernel.detach()).mul_(share[:, None, None] / prior.length**2)
    by_unit = (pull @ unit).sub_(pull.sum(dim=2, keepdim=True) * unit)
    by_z = by_unit.sub_((by_unit * unit).sum(dim=2, keepdim=True) * unit).div_(length)
    return (losses * share).to(z), by_z.to(z)


def predict_classes(
    prior: Prior, z: Tensor, y: Tensor, queries: Tensor, classes: int, capacity: int, rng: np.random.Generator
) -> Tensor:
    """Return the probabilities (q, C) of ``queries`` (q, d), given a client's samples ``z`` (n, d), ``y`` (n,).

    At most ``capacity`` samples, drawn by ``draw_stratified``, are used.
    """
    labels = y.cpu().numpy()
    tree = build_tree(z.cpu().numpy(), labels, classes, rng)
    rows = draw_stratified(labels, capacity, rng)
    asked, above = len(rows) + np.arange(len(queries)), np.ones(len(queries), np.int64)
    nodes = dict[int, Node]()
    for number, node in enumerate(tree if len(queries) else ()):
        sign = node[labels[rows]]
        below = np.flatnonzero(sign)
        if len(below):
            nodes[number] = Node(below, asked, sign[below], above, Draws(draw_key(rng)))
    positive = queries.new_full((len(queries), len(tree)), 0.5, dtype=torch.float64)
    own = z[torch.from_numpy(rows).to(z.device)]
    found = log_probabilities(prior, prior.kernel(own, torch.cat([own, queries]))[None], [*nodes.values()])
    for number, values in zip(nodes, found, strict=True):
        positive[:, number] = values.double().exp()
    return class_probabilities(torch.from_numpy(tree).to(y.device), positive, torch.bincount(y, minlength=classes))


def mark_first_halves(y: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask (n,) of the first, third, fifth, ... sample of each class in ``y`` (n,)."""
    order = np.argsort(y, kind="stable")
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(y)) - np.searchsorted(y[order], y[order])
    return np.asarray(ranks % 2 == 0)


@dataclass(frozen=True)
class Prior:
    """A GP of mean zero with kernel ``scale`` exp(-|a - b|^2 / (2 ``length``^2)), and a sampler of its posterior.

    ``jitter`` is added to the variance of the samples that it is conditioned on. Each of ``chains`` Gibbs chains takes
    ``sweeps`` steps.
    """

    scale: float = 8.0
    length: float = 1.0
    jitter: float = 1e-3
    chains: int = 20
    sweeps: int = 5

    def counters(self, size: int) -> int:
        """Return the number of counters that a GP of ``size`` samples takes from its ``Draws``."""
        return 2 * size * self.chains * self.sweeps

    def kernel(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the covariances (..., n, q) of rows ``a`` (..., n, d) and ``b`` (..., q, d)."""
        squared = a.square().sum(dim=-1)[..., None] + b.square().sum(dim=-1)[..., None, :]
        squared = squared.sub_(a @ b.mT, alpha=2).clamp_min_(0)
        return squared.div_(-2 * self.length**2).exp_() * self.scale  # a copy, as the gradient of exp needs its result


@dataclass(frozen=True)
class Node:
    """A two-class GP given samples ``known`` (n,), n > 0, and samples ``asked`` (q,), q > 0, that it predicts.

    They are samples of ``client``, with the labels ``sign`` (n,) and ``asked_sign`` (q,) of +1 or -1. The chains' omega
    are drawn from ``draws``.
    """

    known: NDArray[np.int64]
    asked: NDArray[np.int64]
    sign: NDArray[np.int64]
    asked_sign: NDArray[np.int64]
    draws: Draws
    client: int = 0

    @property
    def widths(self) -> tuple[int, int]:
        """Return the sizes to which the samples are padded, which depend on no other node."""
        return _width(len(self.known)), _width(len(self.asked))


def _width(size: int) -> int:
    """Return ``size``, rounded up to a multiple of 8 or, above 64, of 32."""
    step = 8 if size <= 64 else 32
    return -(-size // step) * step


def log_probabilities(prior: Prior, kernel: Tensor, nodes: Sequence[Node]) -> list[Tensor]:
    """Return the log-probabilities (q,) of the labels that each node asks for, over all chains, differentiable.

    ``kernel`` (clients, n, n or more) are the covariances of the first n samples of each client with all its samples.
    Nodes of the same widths are computed together.
    """
    found, groups = dict[int, Tensor](), dict[tuple[int, int], list[int]]()
    for place, node in enumerate(nodes):
        groups.setdefault(node.widths, []).append(place)
    for (known, asked), places in sorted(groups.items()):
        numbers = prior.chains * max(known * known, min(asked, QUERIES_AT_A_TIME) * max(known, _QUADRATURE_POINTS))
        count = max(1, _MAX_NUMBERS // numbers)
        for first in range(0, len(places), count):
            part = places[first : first + count]
            posterior = Posterior(prior, kernel, [nodes[place] for place in part])
            for place, values in zip(part, posterior.log_probability(), strict=True):
                found[place] = values[: len(nodes[place].asked)]
    return [found[place] for place in range(len(nodes))]


def _is_small(prior: Prior, kernel: Tensor, nodes: Sequence[Node]) -> bool:
    return kernel.is_cpu and max(len(node.known) + len(node.asked) for node in nodes) <= MAX_COMPILED_SAMPLES


@backend.accelerated("pfedgp", when=_is_small)
def differentiate_nodes(prior: Prior, kernel: Tensor, nodes: Sequence[Node]) -> tuple[Tensor, Tensor]:
    """Return the sum of -log p over what each node asks for (b,), and the gradient of all by the ``kernel``.

    See ``log_probabilities``.
    """
    with torch.enable_grad():
        own = kernel.requires_grad_()
        sums = torch.stack([-values.sum() for values in log_probabilities(prior, own, nodes)])
        (by_kernel,) = torch.autograd.grad(sums.sum(), own)
    return sums.detach(), by_kernel


class Posterior:
    """The posteriors of b nodes of the same widths, padded by samples that are independent of all others."""

    def __init__(self, prior: Prior, kernel: Tensor, nodes: Sequence[Node]) -> None:
        self.prior, self._kernel, self._nodes = prior, kernel, nodes
        self._known, sign = self._pad([node.known for node in nodes]), self._pad([node.sign for node in nodes])
        self._client = torch.tensor([node.client for node in nodes], device=kernel.device)
        sizes, width = [len(node.known) for node in nodes], self._known.shape[1]
        exists = torch.arange(width, device=kernel.device) < torch.tensor(sizes, device=kernel.device)[:, None]
        self._exists = exists
        own = torch.where(exists[:, None], self._covariances(self._known), 0.0)
        self._k = own + torch.diag_embed(torch.where(exists, prior.jitter, 1.0))
        with torch.no_grad():
            self.omega = run_gibbs(prior, self._k.detach(), sign * exists, sizes, [node.draws for node in nodes])
            self._root = self.omega.sqrt()
            self._factor = _cholesky(_augmented_covariance(self._k, self._root))
            self._target = (sign * exists)[:, None].to(self._k) / 2 / self._root  # (b, chains, n): W^-1/2 kappa

    def _pad(self, values: Sequence[NDArray[np.int64]]) -> Tensor:
        """Return values (b, width); padding repeats the first one."""
        padded = np.repeat([own[:1] for own in values], _width(max(map(len, values))), axis=1)
        for row, own in zip(padded, values, strict=True):
            row[: len(own)] = own
        return torch.from_numpy(padded).to(self._kernel.device)

    def _covariances(self, asked: Tensor) -> Tensor:
        """Return the covariances (b, n, q) with samples ``asked`` (b, q), zero for padding in the first ones."""
        _, height, width = self._kernel.shape
        rows = self._client[:, None] * height + self._known
        at = rows[..., None] * width + asked[:, None]
        found = self._kernel.flatten().index_select(0, at.flatten()).view(at.shape)
        return torch.where(self._exists[..., None], found, 0.0)

    def latent(self, asked: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance (b, chains, q) of f at samples ``asked`` (b, q)."""
        cross = self._covariances(asked)
        constants = self._root, self._factor, self._target
        mean, reduction = _Moments.apply(self._k, cross, *constants)  # type: ignore[no-untyped-call]
        return mean, (self.prior.scale - reduction).clamp_min(1e-6)

    def log_probability(self) -> Tensor:
        """Return the log-probabilities (b, q), over all chains, that the samples asked for have their labels."""
        rows, sign = self._pad([node.asked for node in self._nodes]), self._pad([n.asked_sign for n in self._nodes])
        pieces = zip(torch.split(rows, QUERIES_AT_A_TIME, 1), torch.split(sign, QUERIES_AT_A_TIME, 1), strict=True)
        return torch.cat([log_expected_sigmoid(*self.latent(own), s) for own, s in pieces], dim=1)


class _Moments(torch.autograd.Function):
    """The mean (b, chains, q) of f, and by how much the samples reduce its variance, with omega held.

    With S = (K + W^-1)^-1 = W^1/2 B^-1 W^1/2, w = S W^-1 kappa and A = S C for the covariances C (b, n, q), they are
    C'w and the diagonal of C'A. As dS = -S dK S, no factor has to be differentiated.
    """

    @staticmethod
    def forward(
        ctx: Any, k: Tensor, cross: Tensor, root: Tensor, factor: Tensor, target: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return both."""
        right = torch.cat([root[..., None] * cross[:, None], target[..., None]], dim=3)
        solved = torch.cholesky_solve(right, factor).mul_(root[..., None])
        a, w = solved[..., :-1], solved[..., -1]  # (b, chains, n, q), (b, chains, n)
        ctx.save_for_backward(a, w)
        return w @ cross, (a * cross[:, None]).sum(dim=2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        """Return the gradients by K (b, n, n) and C (b, n, q)."""
        a, w = ctx.saved_tensors
        by_mean, by_reduction = grads
        weighted = a * by_reduction[:, :, None]
        by_cross = w.mT @ by_mean + 2 * weighted.sum(dim=1)
        pairs = [value.transpose(1, 2).flatten(2) for value in (weighted, a)]  # (b, n, chains q)
        by_k = -(a @ by_mean[..., None])[..., 0].mT @ w - pairs[0] @ pairs[1].mT
        return by_k, by_cross, None, None, None


def log_expected_sigmoid(mean: Tensor, variance: Tensor, sign: Tensor) -> Tensor:
    """Return log E[sigmoid(s f)] (b, q) for f ~ N(mean, variance), (b, chains, q), averaged over chains.

    The labels s are ``sign`` (b, q).

    Gauss-Hermite quadrature is at most 2e-4 off for standard deviations up to 3; that of a kernel of scale 8 is 2.8.
    """
    at, weight = (torch.from_numpy(part).to(mean) for part in gauss_hermite())
    # The points are symmetric, so that s f has them around s times the mean.
    f = (sign[:, None] * mean)[..., None] + torch.sqrt(2 * variance)[..., None] * at  # (b, chains, q, points)
    return (torch.sigmoid(f) @ weight).mean(dim=1).clamp_min(torch.finfo(f.dtype).tiny).log()


@cache
def gauss_hermite() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return points and weights (20,): E[g(f)] is the sum of weights times g(mean + sqrt(2 variance) points)."""
    at, weight = np.polynomial.hermite.hermgauss(_QUADRATURE_POINTS)
    return at.astype(np.float32), (weight / math.sqrt(math.pi)).astype(np.float32)


@backend.accelerated("pfedgp", when=lambda prior, k, *_: k.is_cpu and k.shape[1] <= MAX_COMPILED_SAMPLES)
@torch.no_grad()
def run_gibbs(prior: Prior, k: Tensor, sign: Tensor, sizes: Sequence[int], draws: Sequence[Draws]) -> Tensor:
    """Return omega (b, chains, n) after ``sweeps`` from its mean for f = 0, given the covariances ``k`` (b, n, n) of f.

    Each of the b Gaussian processes has ``sizes`` samples, with the labels ``sign`` (b, n), and ``draws`` of its own.
    """
    # In float32, the covariance of many nearly equal samples has no Cholesky factor.
    factor = _cholesky(k.double()).to(k.dtype)
    omega = k.new_full((len(k), prior.chains, k.shape[1]), 0.25)
    for _ in range(prior.sweeps):
        drawn = k.new_ones(2 + TERMS + 1, len(k), k.shape[1], prior.chains)
        for place, (size, own) in enumerate(zip(sizes, draws, strict=True)):
            numbers = np.concatenate(own.draw_sweep(size * prior.chains)).reshape(len(drawn), size, prior.chains)
            drawn[:, place, :size] = torch.from_numpy(numbers).to(k)
        normal, noise, *exponential = drawn.mT
        root = omega.sqrt()
        # A draw from the prior, corrected by its difference from the (noisy) targets: Matheron's rule.
        from_prior = normal @ factor.mT
        residual = sign[:, None] / 2 / root - root * from_prior - noise
        f = from_prior + (root * _solve(_cholesky(_augmented_covariance(k, root)), residual)) @ k
        omega = draw_polya_gamma(f, torch.stack(exponential))
    return omega


def draw_key(rng: np.random.Generator) -> NDArray[np.uint32]:
    """Draw two numbers of 32 bits, which determine all ``Draws``."""
    return rng.integers(0, 2**32, 2, dtype=np.uint32)


class Draws:
    """Random numbers of Gibbs sampling, determined by a ``key`` (2,) and the number of counters ``used`` before.

    Compiled loops draw the same numbers up to rounding.
    """

    def __init__(self, key: NDArray[np.uint32], used: int = 0) -> None:
        self.key, self.used = key, used

    def draw_sweep(self, size: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the next normal (2, size) and exponential numbers (TERMS + 1, size)."""
        bits = np.concatenate([philox_bits(self.key, self.used + first, size) for first in (0, size)])
        self.used += 2 * size
        uniform = (bits.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
        exponentials = -np.log(uniform[2 : TERMS + 3])
        # Box & Muller (1958). The lowest two bits choose one of four quarters of the circle, the others a place in it.
        angle = ((bits[1] >> np.uint32(2)).astype(np.float32) - np.float32(2.0**29)) * np.float32(math.pi / 2**31)
        sine, cosine = np.sin(angle), np.where(bits[1] & 1, -np.cos(angle), np.cos(angle))
        pair = np.where(bits[1] & 2, (sine, cosine), (cosine, sine))
        return np.sqrt(-2 * np.log(uniform[0])) * pair, exponentials


def philox_bits(key: NDArray[np.uint32], first: int, count: int) -> NDArray[np.uint32]:
    """Return the random numbers of 32 bits (4, count) of Philox 4x32-10 for the counters from ``first`` on.

    Salmon et al. (2011), https://doi.org/10.1145/2063384.2063405.
    """
    low_bits, half = np.uint64(2**32 - 1), np.uint64(32)
    counter = np.arange(first, first + count, dtype=np.uint64)
    a, b, c, d = counter & low_bits, counter >> half, np.zeros_like(counter), np.zeros_like(counter)
    own0, own1 = (int(part) for part in key)
    for _ in range(10):
        low, high = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b = (high >> half) ^ b ^ np.uint64(own0), high & low_bits
        c, d = (low >> half) ^ d ^ np.uint64(own1), low & low_bits
        own0, own1 = (own0 + 0x9E3779B9) % 2**32, (own1 + 0xBB67AE85) % 2**32
    return np.stack([a, b, c, d]).astype(np.uint32)


def draw_polya_gamma(c: Tensor, g: Tensor) -> Tensor:
    """Return one draw from PG(1, c) for each value of ``c`` (...), given exponential numbers ``g`` (TERMS + 1, ...).

    The series sum_k g_k / (2 pi^2 ((k - 1/2)^2 + c^2 / (4 pi^2))), g_k ~ Exp(1), k = 1, 2, ... (Polson et al., Eq. 1).
    Its first terms are drawn. One shifted exponential number with their mean and variance replaces all others. The mean
    is exact, as it follows from that of the series, tanh(c / 2) / (2 c); the variance is that of ``TAIL``.
    """
    rank = torch.arange(TERMS, dtype=c.dtype, device=c.device).view(-1, *[1] * c.ndim) + 0.5
    share = 1 / (2 * math.pi**2 * rank.square() + c.square() / 2)  # (terms, ...)
    size = c.abs().clamp_min(1e-3)
    deviation = TAIL[0] * (TAIL[1] + TAIL[2] * c.square()) ** -0.75
    rest = torch.tanh(size / 2) / (2 * size) - share.sum(dim=0) + deviation * (g[TERMS] - 1)
    return (g[:TERMS] * share).sum(dim=0) + rest.clamp_min(0)


def _augmented_covariance(k: Tensor, root: Tensor) -> Tensor:
    """Return B = I + W^1/2 K W^1/2 (b, chains, n, n) for ``root`` (b, chains, n), the diagonals of W^1/2."""
    identity = torch.eye(k.shape[1], dtype=k.dtype, device=k.device)
    return root[..., None] * k[:, None] * root[..., None, :] + identity


def _cholesky(matrix: Tensor) -> Tensor:
    """Return the lower factor, or nan where there is none: the engine then reports that the client diverged."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    return torch.where((failed == 0)[..., None, None], factor, torch.nan)


def _solve(factor: Tensor, right: Tensor) -> Tensor:
    """Return B^-1 ``right`` (b, chains, n)."""
    return torch.cholesky_solve(right[..., None], factor)[..., 0]
