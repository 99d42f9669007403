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
from pflcli.methods.parts.gaussian_process import FEW, FEW_PREDICTING, Prior, quadrature, random_key


def losses_and_gradients(
    prior: Prior, trees: Tensor, z: Tensor, y: Tensor, sizes: Sequence[int], rngs: Sequence[np.random.Generator]
) -> tuple[Tensor, Tensor]:
    """Return the mean losses (a,) of clients' samples that are not given, and their gradients by ``z`` (a, n, d).

    ``trees`` (a, nodes, C) are those of ``class_tree``, ``y`` (a, n); of each client the first ``sizes`` samples count.
    Embeddings are scaled to length 1.
    """
    from pflcli.methods.parts.pfedgp_loops import tree_loss  # here, as Numba takes a second to import

    norm = torch.linalg.vector_norm(z, dim=2, keepdim=True).clamp_min(1e-12)
    unit = z / norm
    k = prior.kernel(unit, unit)
    by_k, losses, shares = torch.zeros(k.shape), *torch.zeros(2, len(z))
    on_cpu = k.cpu().numpy(), trees.cpu().numpy(), y.cpu().numpy(), by_k.numpy()
    for place, (size, rng, covariances, tree, labels, grad) in enumerate(zip(sizes, rngs, *on_cpu, strict=True)):
        signs, support = _nodes(tree, labels[:size])
        drawing = random_key(rng), prior.chains, prior.sweeps, prior.scale, prior.jitter
        losses[place] = tree_loss(covariances, signs, support, *drawing, *quadrature(), grad, FEW, FEW_PREDICTING)
        shares[place] = 1 / max(1, int((~support).sum()))
    by_squared = by_k.to(k) * k / (-2 * prior.length**2)
    by_squared = by_squared + by_squared.mT
    by_unit = 2 * (by_squared.sum(dim=2, keepdim=True) * unit - by_squared @ unit)
    by_z = (by_unit - unit * (unit * by_unit).sum(dim=2, keepdim=True)) / norm
    return (losses * shares).to(z), by_z * shares.to(z)[:, None, None]


def _nodes(tree: NDArray[np.int64], y: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the labels (nodes, n) of samples ``y`` (n,) at nodes with samples to predict, and which are given (n,)."""
    support = class_tree.halves(y)
    signs = tree[:, y]
    return signs[((signs != 0) & ~support).any(axis=1)], support
