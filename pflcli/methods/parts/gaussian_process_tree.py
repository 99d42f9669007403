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

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pflcli.engine import backend

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


def build_tree(
    z: NDArray[np.float32], y: NDArray[np.int64], classes: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the tree (max(C - 1, 0), C) over the classes of samples ``z`` (n, d), ``y`` (n,); unused rows are zero.

    The root is row 0, and a node comes before the nodes below it. Branch +1 contains the smallest class of the node.
    """
    tree = np.zeros((max(classes - 1, 0), classes), dtype=np.int64)
    present, place = np.unique(y, return_inverse=True)
    if len(present) > 1:
        means = (place == np.arange(len(present))[:, None]).astype(np.float64) @ z.astype(np.float64)
        means /= np.bincount(place)[:, None]
        draws = rng.random((len(present) - 1, _K_MEANS_RESTARTS, 2))
        nodes = split_classes(means, draws)
        tree[: len(nodes), present] = nodes
    return tree


@backend.accelerated("pfedgp")
def split_classes(x: NDArray[np.float64], draws: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the tree (n - 1, n) over the classes' mean embeddings ``x`` (n, d), n >= 2.

    ``draws`` (n - 1, restarts, 2) are the random numbers of ``split_in_two`` for each node.
    """
    tree = np.zeros((len(x) - 1, len(x)), np.int64)
    waiting, row = [np.arange(len(x))], 0
    while waiting:
        members = waiting.pop()
        if len(members) > 1:
            part = split_in_two(x[members], draws[row])
            first = part == part[0]
            tree[row, members] = np.where(first, 1, -1)
            waiting += [members[~first], members[first]]
            row += 1
    return tree


def split_in_two(x: NDArray[np.float64], draws: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return to which of two non-empty parts, 0 or 1, k-means assigns each of the rows ``x`` (n, d), n >= 2.

    ``draws`` (restarts, 2), uniform in [0, 1), determine the two initial centres of each run. Equal rows are cut in the
    middle.
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
        for _ in range(_MAX_K_MEANS_STEPS):
            distance = _squared_distances(squared, part)
            moved = (distance[1] < distance[0]).astype(np.int64)
            if (moved == part).all() or not 0 < moved.sum() < n:
                break
            part = moved
        inertia = distance[part, np.arange(n)].sum()
        if inertia < least:
            best, least = part, inertia
    return best


def _squared_distances(squared: NDArray[np.float64], part: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the squared distances (2, n) of rows to the means of both parts, given those between rows (n, n)."""
    sides = [part == side for side in (0, 1)]
    return np.stack([squared[:, s].mean(axis=1) - squared[np.ix_(s, s)].mean() / 2 for s in sides])


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


@backend.accelerated("pfedgp", when=lambda prior, trees, z, *_: z.is_cpu)
def losses_and_gradients(
    prior: Prior, trees: Tensor, z: Tensor, y: Tensor, sizes: Sequence[int], rngs: Sequence[np.random.Generator]
) -> tuple[Tensor, Tensor]:
    """Return clients' losses (a,) and their gradients by the embeddings ``z`` (a, n, d), which are scaled to length 1.

    The loss is the mean of -log p over one half of the samples given the other half, at each inner node of ``trees``
    (a, nodes, C) on the way to the class ``y`` (a, n). Only the first ``sizes`` samples of a client count. The draws of
    omega are constants.
    """
    losses, by_z = z.new_zeros(len(z)), torch.zeros_like(z)
    for client, (size, rng) in enumerate(zip(sizes, rngs, strict=True)):
        draws = Draws(draw_key(rng))
        with torch.enable_grad():
            own = z[client, :size].detach().float().requires_grad_()
            loss = _tree_loss(prior, trees[client], functional.normalize(own, dim=1), y[client, :size], draws)
            if loss is not None:
                losses[client] = loss.detach()
                by_z[client, :size] = torch.autograd.grad(loss, own)[0]
    return losses, by_z


def _tree_loss(prior: Prior, tree: Tensor, unit: Tensor, y: Tensor, draws: Draws) -> Tensor | None:
    """Return the mean of -log p over one half of the samples, summed over the nodes; None if no node predicts any."""
    conditions = mark_first_halves(y, tree.shape[1])
    losses = []
    for node in tree:
        sign = node[y]  # +1, -1, or 0 for samples that are not below the node
        observed, predicted = conditions & (sign != 0), ~conditions & (sign != 0)
        if predicted.any():
            posterior = Posterior(prior, unit[observed], sign[observed], draws)
            losses.append(-posterior.log_probability(unit[predicted], sign[predicted]).sum())
    return torch.stack(losses).sum() / (~conditions).sum() if losses else None


def predict_classes(
    prior: Prior, z: Tensor, y: Tensor, queries: Tensor, classes: int, capacity: int, rng: np.random.Generator
) -> Tensor:
    """Return the probabilities (q, C) of ``queries`` (q, d), given a client's samples ``z`` (n, d), ``y`` (n,).

    At most ``capacity`` samples, drawn by ``draw_stratified``, are used.
    """
    labels = y.cpu().numpy()
    tree = torch.from_numpy(build_tree(z.cpu().numpy(), labels, classes, rng)).to(y.device)
    rows = torch.from_numpy(draw_stratified(labels, capacity, rng)).to(y.device)
    positive = queries.new_full((len(queries), len(tree)), 0.5, dtype=torch.float64)
    for number, node in enumerate(tree if len(queries) else ()):
        below = rows[node[y[rows]] != 0]
        if len(below):
            positive[:, number] = predict_positive(prior, z[below], node[y[below]], queries, rng)
    return class_probabilities(tree, positive, torch.bincount(y, minlength=classes))


def mark_first_halves(y: Tensor, classes: int) -> Tensor:
    """Return a mask (n,) of the first, third, fifth, ... sample of each class in ``y`` (n,)."""
    of_class = functional.one_hot(y, classes)
    return of_class.cumsum(dim=0).gather(1, y[:, None])[:, 0] % 2 == 1


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

    def kernel(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the covariances (..., n, q) of rows ``a`` (..., n, d) and ``b`` (..., q, d)."""
        squared = a.square().sum(dim=-1)[..., None] + b.square().sum(dim=-1)[..., None, :]
        squared = squared.sub_(a @ b.mT, alpha=2).clamp_min_(0)
        return squared.div_(-2 * self.length**2).exp_() * self.scale  # a copy, as the gradient of exp needs its result


class Posterior:
    """A GP given samples ``z`` (n, d) with labels ``sign`` (n,) of +1 or -1.

    The chains' omega (chains, n) are drawn from ``draws``.
    """

    def __init__(self, prior: Prior, z: Tensor, sign: Tensor, draws: Draws) -> None:
        self.prior, self._z = prior, z
        k = training_covariance(prior, z)
        self.omega = run_gibbs(k.detach(), sign, prior.chains, prior.sweeps, draws)
        self._root = self.omega.sqrt()
        self._factor = _cholesky(_augmented_covariance(k, self._root))
        target = sign.to(z.dtype) / 2 / self._root
        self._weight = self._root * _solve(self._factor, target)  # (chains, n): (K + W^-1)^-1 W^-1 kappa

    def latent(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance (chains, q) of f at rows ``z`` (q, d)."""
        cross = self.prior.kernel(self._z, z)  # (n, q)
        reduced = torch.linalg.solve_triangular(self._factor, self._root[:, :, None] * cross, upper=False)
        variance = self.prior.scale - reduced.square().sum(dim=1)
        return self._weight @ cross, variance.clamp_min(1e-6)

    def log_probability(self, z: Tensor, sign: Tensor) -> Tensor:
        """Return the log-probabilities (q,) that rows ``z`` (q, d) have the labels ``sign`` (q,), over all chains."""
        pieces = zip(torch.split(z, QUERIES_AT_A_TIME), torch.split(sign, QUERIES_AT_A_TIME), strict=True)
        return torch.cat([log_expected_sigmoid(*self.latent(part), labels) for part, labels in pieces])


@backend.accelerated("pfedgp", when=lambda prior, z, *_: z.is_cpu)
def predict_positive(prior: Prior, z: Tensor, sign: Tensor, queries: Tensor, rng: np.random.Generator) -> Tensor:
    """Return the probabilities (q,) of +1, in float64, of rows ``queries`` (q, d), by the ``Posterior``."""
    posterior = Posterior(prior, z, sign, Draws(draw_key(rng)))
    return posterior.log_probability(queries, torch.ones_like(queries[:, 0])).double().exp()


def training_covariance(prior: Prior, z: Tensor) -> Tensor:
    """Return the covariances (n, n) of samples ``z`` (n, d) that a GP is conditioned on."""
    return prior.kernel(z, z) + prior.jitter * torch.eye(len(z), dtype=z.dtype, device=z.device)


def log_expected_sigmoid(mean: Tensor, variance: Tensor, sign: Tensor) -> Tensor:
    """Return log E[sigmoid(s f)] (q,) for f ~ N(mean, variance), (chains, q), averaged over chains; ``sign`` (q,).

    Gauss-Hermite quadrature is at most 2e-4 off for standard deviations up to 3; that of a kernel of scale 8 is 2.8.
    """
    at, weight = (torch.from_numpy(part).to(mean) for part in gauss_hermite())
    f = mean[..., None] + torch.sqrt(2 * variance)[..., None] * at  # (chains, q, points)
    log_weight = weight.log() - math.log(len(mean))
    return torch.logsumexp(functional.logsigmoid(sign[:, None] * f) + log_weight, dim=(0, 2))


@cache
def gauss_hermite() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return points and weights (20,): E[g(f)] is the sum of weights times g(mean + sqrt(2 variance) points)."""
    at, weight = np.polynomial.hermite.hermgauss(_QUADRATURE_POINTS)
    return at.astype(np.float32), (weight / math.sqrt(math.pi)).astype(np.float32)


@torch.no_grad()
def run_gibbs(k: Tensor, sign: Tensor, chains: int, sweeps: int, draws: Draws) -> Tensor:
    """Return omega (chains, n) after ``sweeps`` from its mean for f = 0, given the covariances ``k`` (n, n) of f."""
    draws_per_sweep = [
        [torch.from_numpy(drawn).view(-1, len(k), chains).mT.to(k) for drawn in draws.draw_sweep(len(k) * chains)]
        for _ in range(sweeps)
    ]
    # In float32, the covariance of many nearly equal samples has no Cholesky factor.
    factor = _cholesky(k.double()).to(k.dtype)
    omega = k.new_full((chains, len(k)), 0.25)
    for (from_prior, noise), exponential in draws_per_sweep:
        root = omega.sqrt()
        # A draw from the prior, corrected by its difference from the (noisy) targets: Matheron's rule.
        prior = from_prior @ factor.T
        residual = sign / 2 / root - root * prior - noise
        f = prior + (root * _solve(_cholesky(_augmented_covariance(k, root)), residual)) @ k
        omega = draw_polya_gamma(f, exponential)
    return omega


def draw_key(rng: np.random.Generator) -> NDArray[np.uint32]:
    """Draw two numbers of 32 bits, which determine all ``Draws``."""
    return rng.integers(0, 2**32, 2, dtype=np.uint32)


class Draws:
    """Random numbers of Gibbs sampling, determined by a ``key`` (2,).

    Compiled loops draw the same numbers up to rounding.
    """

    def __init__(self, key: NDArray[np.uint32]) -> None:
        self._key, self._used = key, 0

    def draw_sweep(self, size: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the next normal (2, size) and exponential numbers (TERMS + 1, size)."""
        bits = np.concatenate([philox_bits(self._key, self._used + first, size) for first in (0, size)])
        self._used += 2 * size
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
    """Return B = I + W^1/2 K W^1/2 (chains, n, n) for ``root`` (chains, n), the diagonals of W^1/2."""
    return root[:, :, None] * k * root[:, None, :] + torch.eye(len(k), dtype=k.dtype, device=k.device)


def _cholesky(matrix: Tensor) -> Tensor:
    """Return the lower factor, or nan where there is none: the engine then reports that the client diverged."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    return torch.where((failed == 0)[..., None, None], factor, torch.nan)


def _solve(factor: Tensor, right: Tensor) -> Tensor:
    """Return B^-1 ``right`` (chains, n)."""
    return torch.cholesky_solve(right[..., None], factor)[..., 0]
