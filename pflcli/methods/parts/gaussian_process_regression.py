"""pFedGP for quantities: exact regression by a Gaussian process, which no tree and no sampling need.

Rasmussen & Williams (2006), Gaussian Processes for Machine Learning, Eq. 2.25, 2.26 and 2.30. Labels are standardized.
The kernel of embeddings of length 1 is s (1 + exp(-d^2 / (2 length^2))), where the 1 allows for the level of a client's
labels, and the noise has the variance s r. The scale s has a closed form given r, and r is the one of ``NOISE`` with
the largest marginal likelihood of the samples that are conditioned on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

NOISE = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.001)
"""The variances of noise to choose from, in variances of the process; ties go to the first."""
MIN_SAMPLES = 4
"""The least number of samples for a loss: two, given two others."""
_MIN_SCALE = 1e-6
"""The least variance of the process, in variances of all training labels: labels may all be the same."""


def kernel(a: Tensor, b: Tensor, length: float) -> Tensor:
    """Return the kernel (n, m) of embeddings ``a`` (n, d) and ``b`` (m, d), in units of s."""
    squared = a.square().sum(dim=1)[:, None] + b.square().sum(dim=1) - 2 * a @ b.T
    return 1 + torch.exp(squared.clamp_min(0) / (-2 * length**2))


def choose_noise(k: Tensor, y: Tensor) -> tuple[float, float]:
    """Return r and s of the largest marginal likelihood of labels ``y`` (n,) with the kernel ``k`` (n, n)."""
    values, vectors = torch.linalg.eigh(k)
    noise = torch.tensor(NOISE, dtype=k.dtype, device=k.device)[:, None]
    spectrum = values.clamp_min(0) + noise  # (r, n)
    scale = ((vectors.T @ y).square() / spectrum).mean(dim=1).clamp_min(_MIN_SCALE)
    likelihood = -(len(y) * scale.log() + spectrum.log().sum(dim=1)) / 2
    best = int(likelihood.argmax())
    return NOISE[best], float(scale[best])


def condition(k: Tensor, cross: Tensor, y: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """Return the means (q,) of queries, and by how much the samples lower their variances, (q,), in units of s.

    ``k`` (n, n) is the kernel of samples with labels ``y`` (n,), and ``cross`` (n, q) theirs with the queries.
    """
    factor = torch.linalg.cholesky(k + noise * torch.eye(len(k), dtype=k.dtype, device=k.device))
    solved = torch.linalg.solve_triangular(factor, torch.column_stack([y[:, None], cross]), upper=False)
    return solved[:, 1:].T @ solved[:, 0], solved[:, 1:].square().sum(dim=0)


def losses_and_gradients(length: float, z: Tensor, y: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return clients' losses (a,) and their gradients by the embeddings ``z`` (a, n, d), which are scaled to length 1.

    The loss is the mean of -log p(y) of every second sample given the others; ``y`` (a, n) are standardized labels.
    Only the first ``sizes`` samples of a client count, and fewer than ``MIN_SAMPLES`` have no loss. r and s are
    constants.
    """
    losses, by_z = z.new_zeros(len(z)), torch.zeros_like(z)
    for client, size in enumerate(sizes):
        if size < MIN_SAMPLES:
            continue
        with torch.enable_grad():
            own = z[client, :size].detach().double().requires_grad_()
            unit, labels = functional.normalize(own, dim=1), y[client, :size].double()
            known, asked = unit[::2], unit[1::2]
            k = kernel(known, known, length)
            if not bool(k.isfinite().all()):
                losses[client], by_z[client, :size] = math.nan, math.nan
                continue
            noise, scale = choose_noise(k.detach(), labels[::2])
            mean, gained = condition(k, kernel(known, asked, length), labels[::2], noise)
            variance = scale * (2 + noise - gained)  # the kernel of a sample with itself is 2
            errors = (labels[1::2] - mean).square()
            loss = (errors / variance + variance.log() + math.log(2 * math.pi)).mean() / 2
            (grad,) = torch.autograd.grad(loss, own)
        losses[client], by_z[client, :size] = loss.detach().to(z), grad.to(z)
    return losses, by_z


def predict(length: float, z: Tensor, y: Tensor, queries: Tensor) -> Tensor:
    """Return the standardized predictions (q,) of unit vectors ``queries`` (q, d), given samples ``z`` (n, d), ``y``.

    Without samples they are 0, the mean label of all clients.
    """
    if not len(z):
        return queries.new_zeros(len(queries), dtype=torch.float64)
    z, y, queries = z.double(), y.double(), queries.double()
    k = kernel(z, z, length)
    noise, _ = choose_noise(k, y)
    return condition(k, kernel(z, queries, length), y, noise)[0]
