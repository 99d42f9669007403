"""The loss of pFedGP on the samples of a stack of clients, and its gradient by their embeddings.

Achituve et al. (2021), https://arxiv.org/abs/2106.15482, section 4: -log p of one half of the samples, given the other,
at each inner node on the way to the class. Draws of omega are constants.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pflcli.engine import backend
from pflcli.methods.parts.gaussian_process import Draws, Posterior, Prior, random_key


@backend.accelerated("pfedgp", when=lambda prior, trees, z, *_: z.is_cpu)
def losses_and_gradients(
    prior: Prior, trees: Tensor, z: Tensor, y: Tensor, sizes: Sequence[int], rngs: Sequence[np.random.Generator]
) -> tuple[Tensor, Tensor]:
    """Return the mean losses (a,) of clients' samples that are not given, and their gradients by ``z`` (a, n, d).

    ``trees`` (a, nodes, C) are those of ``class_tree``, ``y`` (a, n); of each client the first ``sizes`` samples count.
    Embeddings are scaled to length 1.
    """
    losses, by_z = z.new_zeros(len(z)), torch.zeros_like(z)
    for client, (size, rng) in enumerate(zip(sizes, rngs, strict=True)):
        draws = Draws(random_key(rng))
        with torch.enable_grad():
            own = z[client, :size].detach().float().requires_grad_()
            loss = _tree_loss(prior, trees[client], functional.normalize(own, dim=1), y[client, :size], draws)
            if loss is not None:
                losses[client] = loss.detach()
                by_z[client, :size] = torch.autograd.grad(loss, own)[0]
    return losses, by_z


def _tree_loss(prior: Prior, tree: Tensor, unit: Tensor, y: Tensor, draws: Draws) -> Tensor | None:
    """Return the mean over one half of the samples of -log p, summed over the nodes; None if none is predicted."""
    conditions = halves(y, tree.shape[1])
    losses = []
    for node in tree:
        sign = node[y]  # +1, -1, or 0 for samples that are not below the node
        observed, predicted = conditions & (sign != 0), ~conditions & (sign != 0)
        if predicted.any():
            posterior = Posterior(prior, unit[observed], sign[observed], draws)
            losses.append(-posterior.log_probability(unit[predicted], sign[predicted]).sum())
    return torch.stack(losses).sum() / (~conditions).sum() if losses else None


def halves(y: Tensor, classes: int) -> Tensor:
    """Return for each sample (n,) whether it is a first, third, ... of its class ``y`` (n,)."""
    of_class = functional.one_hot(y, classes)
    return of_class.cumsum(dim=0).gather(1, y[:, None])[:, 0] % 2 == 1
