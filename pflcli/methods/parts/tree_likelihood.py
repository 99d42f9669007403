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
    from pflcli.methods.parts.tree_loops import stack_losses  # here, as Numba takes a second to import

    on_cpu = (value.cpu().contiguous().numpy() for value in (z.float(), trees, y))
    by_z, keys = torch.empty(z.shape), np.stack([random_key(rng) for rng in rngs])
    drawing = prior.chains, prior.sweeps, prior.scale, prior.length, prior.jitter
    limits = FEW, FEW_PREDICTING, by_z.numpy()
    losses = stack_losses(*on_cpu, np.asarray(sizes), keys, *drawing, *quadrature(), *limits)
    return torch.from_numpy(losses).to(z), by_z.to(z)
