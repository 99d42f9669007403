"""Two-class Gaussian process classification with Pólya-Gamma augmentation.

Polson, Scott & Windle (2013), https://arxiv.org/abs/1205.0310: given omega ~ PG(1, f), the logistic likelihood of a
label s = +1 or -1 is Gaussian in f, so f given omega and omega given f are both drawn in closed form. Model and
predictive of Achituve et al. (2021), https://arxiv.org/abs/2106.15482, sections 3 and 4.

With kappa = s / 2, W = diag(omega) and B = I + W^1/2 K W^1/2, (K + W^-1)^-1 = W^1/2 B^-1 W^1/2. B has no eigenvalue
below one, however small omega is, where K + W^-1 has no bound above.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import logsigmoid

from pflcli.engine import backend

TERMS = 4
"""Terms of the Pólya-Gamma series that are drawn."""

REST = (1 / (2 * math.sqrt(3) * math.pi**2), 17.6134, 0.684446 / (4 * math.pi**2))
"""The standard deviation of the other terms is REST[0] (REST[1] + REST[2] c^2)^(-3/4): a fit of the series' tail, by
which the variance of a draw is 0.4 % off at most for |c| <= 60, and 0.01 % for |c| <= 2."""

_POINTS = 20
"""Points of Gauss-Hermite quadrature."""

QUERIES = 256
"""Samples that are predicted at a time."""


@dataclass(frozen=True)
class Prior:
    """A GP of mean zero with kernel ``scale`` exp(-|a - b|^2 / (2 ``length``^2)), and a sampler of its posterior.

    ``jitter`` is added to the variance of samples that it is conditioned on. ``chains`` Gibbs chains take ``sweeps``.
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
        k = jittered(prior, z)
        self.omega = gibbs(k.detach(), sign, prior.chains, prior.sweeps, draws)
        self._root = self.omega.sqrt()
        self._factor = _cholesky(_b(k, self._root))
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
        pieces = zip(torch.split(z, QUERIES), torch.split(sign, QUERIES), strict=True)
        return torch.cat([log_expected_sigmoid(*self.latent(part), labels) for part, labels in pieces])


@backend.accelerated("pfedgp", when=lambda prior, z, *_: z.is_cpu)
def probabilities(prior: Prior, z: Tensor, sign: Tensor, queries: Tensor, rng: np.random.Generator) -> Tensor:
    """Return the probabilities (q,) of +1, in float64, of rows ``queries`` (q, d), as ``Posterior`` has them."""
    posterior = Posterior(prior, z, sign, Draws(random_key(rng)))
    return posterior.log_probability(queries, torch.ones_like(queries[:, 0])).double().exp()


def jittered(prior: Prior, z: Tensor) -> Tensor:
    """Return the covariances (n, n) of samples ``z`` (n, d) that a GP is conditioned on."""
    return prior.kernel(z, z) + prior.jitter * torch.eye(len(z), dtype=z.dtype, device=z.device)


def log_expected_sigmoid(mean: Tensor, variance: Tensor, sign: Tensor) -> Tensor:
    """Return log E[sigmoid(s f)] (q,) for f ~ N(mean, variance), (chains, q), averaged over chains; ``sign`` (q,).

    By Gauss-Hermite quadrature, at most 2e-4 off for standard deviations up to 3; that of a kernel of scale 8 is 2.8.
    """
    at, weight = (torch.from_numpy(part).to(mean) for part in quadrature())
    f = mean[..., None] + torch.sqrt(2 * variance)[..., None] * at  # (chains, q, points)
    log_weight = weight.log() - math.log(len(mean))
    return torch.logsumexp(logsigmoid(sign[:, None] * f) + log_weight, dim=(0, 2))


@cache
def quadrature() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return points and weights (20,): E[g(f)] is the sum of weights times g(mean + sqrt(2 variance) points)."""
    at, weight = np.polynomial.hermite.hermgauss(_POINTS)
    return at.astype(np.float32), (weight / math.sqrt(math.pi)).astype(np.float32)


@torch.no_grad()
def gibbs(k: Tensor, sign: Tensor, chains: int, sweeps: int, draws: Draws) -> Tensor:
    """Return omega (chains, n) after ``sweeps`` from its mean under f = 0, for covariances ``k`` (n, n) of f."""
    of_sweeps = [
        [torch.from_numpy(drawn).view(-1, len(k), chains).mT.to(k) for drawn in draws.sweep(len(k) * chains)]
        for _ in range(sweeps)
    ]
    # In float64: the covariance of many nearly equal samples has no Cholesky factor in float32.
    factor = _cholesky(k.double()).to(k.dtype)
    omega = k.new_full((chains, len(k)), 0.25)
    for (from_prior, noise), exponential in of_sweeps:
        root = omega.sqrt()
        # A draw from the prior, corrected by its difference from the (noisy) targets: Matheron's rule.
        prior = from_prior @ factor.T
        residual = sign / 2 / root - root * prior - noise
        f = prior + (root * _solve(_cholesky(_b(k, root)), residual)) @ k
        omega = polya_gamma(f, exponential)
    return omega


def random_key(rng: np.random.Generator) -> NDArray[np.uint32]:
    """Return two numbers of 32 bits, which determine all ``Draws``."""
    return rng.integers(0, 2**32, 2, dtype=np.uint32)


class Draws:
    """Random numbers of Gibbs sampling, determined by a ``key`` (2,).

    They are those that compiled loops draw, up to rounding.
    """

    def __init__(self, key: NDArray[np.uint32]) -> None:
        self._key, self._used = key, 0

    def sweep(self, size: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the next normal (2, size) and exponential numbers (TERMS + 1, size)."""
        bits = np.concatenate([random_bits(self._key, self._used + first, size) for first in (0, size)])
        self._used += 2 * size
        uniform = (bits.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
        exponentials = -np.log(uniform[2 : TERMS + 3])
        # Box & Muller (1958). The lowest two bits choose one of four quarters of the circle, the others a place in it.
        angle = ((bits[1] >> np.uint32(2)).astype(np.float32) - np.float32(2.0**29)) * np.float32(math.pi / 2**31)
        sine, cosine = np.sin(angle), np.where(bits[1] & 1, -np.cos(angle), np.cos(angle))
        pair = np.where(bits[1] & 2, (sine, cosine), (cosine, sine))
        return np.sqrt(-2 * np.log(uniform[0])) * pair, exponentials


def random_bits(key: NDArray[np.uint32], first: int, count: int) -> NDArray[np.uint32]:
    """Return random numbers of 32 bits (4, count) of the counters from ``first`` on by Philox 4x32-10.

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


def polya_gamma(c: Tensor, g: Tensor) -> Tensor:
    """Return one draw from PG(1, c) for each value of ``c`` (...), by exponential numbers ``g`` (TERMS + 1, ...).

    The series sum_k g_k / (2 pi^2 ((k - 1/2)^2 + c^2 / (4 pi^2))), g_k ~ Exp(1), k = 1, 2, ... (Polson et al., Eq. 1).
    Its first terms are drawn. All others are one shifted exponential number of their mean and variance: the mean
    follows from that of the series, tanh(c / 2) / (2 c), and is exact, the variance is that of ``REST``.
    """
    rank = torch.arange(TERMS, dtype=c.dtype, device=c.device).view(-1, *[1] * c.ndim) + 0.5
    share = 1 / (2 * math.pi**2 * rank.square() + c.square() / 2)  # (terms, ...)
    size = c.abs().clamp_min(1e-3)
    deviation = REST[0] * (REST[1] + REST[2] * c.square()) ** -0.75
    rest = torch.tanh(size / 2) / (2 * size) - share.sum(dim=0) + deviation * (g[TERMS] - 1)
    return (g[:TERMS] * share).sum(dim=0) + rest.clamp_min(0)


def _b(k: Tensor, root: Tensor) -> Tensor:
    """Return I + W^1/2 K W^1/2 (chains, n, n) for ``root`` (chains, n), the diagonals of W^1/2."""
    return root[:, :, None] * k * root[:, None, :] + torch.eye(len(k), dtype=k.dtype, device=k.device)


def _cholesky(matrix: Tensor) -> Tensor:
    """Return the lower factor, or nan where there is none: the engine then reports that the client diverged."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    return torch.where((failed == 0)[..., None, None], factor, torch.nan)


def _solve(factor: Tensor, right: Tensor) -> Tensor:
    """Return B^-1 ``right`` (chains, n)."""
    return torch.cholesky_solve(right[..., None], factor)[..., 0]
