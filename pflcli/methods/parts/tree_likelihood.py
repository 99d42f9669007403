"""The loss of pFedGP on the samples of a stack of clients, and its gradient by their embeddings.

Achituve et al. (2021), https://arxiv.org/abs/2106.15482, section 4: -log p of one half of the samples, given the other,
at each inner node on the way to the class. Draws of omega are constants.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.methods.parts import class_tree
from pflcli.methods.parts.gaussian_process import FEW, Posterior, Prior, draws, quadrature


def losses_and_gradients(
    prior: Prior, trees: Tensor, z: Tensor, y: Tensor, sizes: Sequence[int], rngs: Sequence[np.random.Generator]
) -> tuple[Tensor, Tensor]:
    """Return the mean losses (a,) of clients' samples that are not given, and their gradients by ``z`` (a, n, d).

    ``trees`` (a, nodes, C) are those of ``class_tree``, ``y`` (a, n); of each client the first ``sizes`` samples count.
    Embeddings are scaled to length 1.
    """
    norm = torch.linalg.vector_norm(z, dim=2, keepdim=True).clamp_min(1e-12)
    unit = z / norm
    k = prior.kernel(unit, unit)
    by_k, by_unit, losses, shares = torch.zeros(k.shape), torch.zeros_like(unit), *torch.zeros(2, len(z))
    on_cpu = k.cpu().numpy(), trees.cpu().numpy(), y.cpu().numpy(), by_k.numpy()
    for place, (size, rng, covariances, tree, labels, grad) in enumerate(zip(sizes, rngs, *on_cpu, strict=True)):
        signs, support = _nodes(tree, labels[:size])
        counts = ((signs != 0) & support).sum(axis=1)
        loss = _at_small_nodes(prior, covariances, signs[counts <= FEW], support, rng, grad)
        for sign in torch.from_numpy(signs[counts > FEW]).to(z.device):
            at_node, by_rows = _at_node(prior, unit[place, :size], sign, torch.from_numpy(support).to(z.device), rng)
            by_unit[place, :size] += by_rows
            loss += at_node
        shares[place] = 1 / max(1, int((~support).sum()))
        losses[place] = loss
    by_squared = by_k.to(k) * k / (-2 * prior.length**2)
    by_squared = by_squared + by_squared.mT
    by_unit += 2 * (by_squared.sum(dim=2, keepdim=True) * unit - by_squared @ unit)
    by_z = (by_unit - unit * (unit * by_unit).sum(dim=2, keepdim=True)) / norm
    return (losses * shares).to(z), by_z * shares.to(z)[:, None, None]


def _nodes(tree: NDArray[np.int64], y: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the labels (nodes, n) of samples ``y`` (n,) at nodes with samples to predict, and which are given (n,)."""
    support = class_tree.halves(y)
    signs = tree[:, y]
    return signs[((signs != 0) & ~support).any(axis=1)], support


def _at_small_nodes(
    prior: Prior,
    k: NDArray[np.float32],
    signs: NDArray[np.int64],
    support: NDArray[np.bool_],
    rng: np.random.Generator,
    grad: NDArray[np.float32],
) -> float:
    """Return the sum of losses at the nodes ``signs`` (nodes, n), and write its gradient by ``k`` into ``grad``."""
    if not len(signs):
        return 0.0
    from pflcli.methods.parts import pfedgp_loops  # here, as Numba takes a second to import

    drawn = draws(rng, int(((signs != 0) & support).sum()), prior.chains, prior.sweeps)
    options = prior.chains, prior.sweeps, prior.scale, prior.jitter
    loss: float = pfedgp_loops.tree_loss(k, signs, support, *drawn, *options, *quadrature(), grad)
    return loss


@torch.enable_grad()
def _at_node(
    prior: Prior, unit: Tensor, sign: Tensor, support: Tensor, rng: np.random.Generator
) -> tuple[float, Tensor]:
    """Return the loss at one node of many samples, and its gradient by ``unit`` (n, d)."""
    leaf = unit.detach().requires_grad_()
    is_given, is_query = (sign != 0) & support, (sign != 0) & ~support
    posterior = Posterior(prior, leaf[is_given], sign[is_given], rng)
    loss = -posterior.log_probability(leaf[is_query], sign[is_query]).sum()
    return float(loss.detach()), torch.autograd.grad(loss, leaf)[0]
