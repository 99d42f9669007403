"""The loss of pFedGP on the samples of a stack of clients, and its gradient by their embeddings.

Achituve et al. (2021), https://arxiv.org/abs/2106.15482, section 4: -log p of one half of the samples, given the other,
at each inner node on the way to the class. Draws of omega are constants.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

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
    by_k, losses = torch.zeros(k.shape), torch.zeros(len(z))
    on_cpu = k.cpu().numpy(), trees.cpu().numpy(), y.cpu().numpy(), by_k.numpy()
    for place, (size, rng, covariances, tree, labels, grad) in enumerate(zip(sizes, rngs, *on_cpu, strict=True)):
        drawing = random_key(rng), prior.chains, prior.sweeps, prior.scale, prior.jitter
        losses[place] = tree_loss(covariances, tree, labels[:size], *drawing, *quadrature(), grad, FEW, FEW_PREDICTING)
    # Of the gradient by unit vectors, (B + B') unit and a multiple of each, what is along them does not reach z.
    by_product = by_k.to(k).mul_(k)
    by_product = (by_product + by_product.mT).div_(prior.length**2)
    along = (by_product * (unit @ unit.mT)).sum(dim=2, keepdim=True)
    return losses.to(z), torch.baddbmm(unit * -along, by_product, unit).div_(norm)
