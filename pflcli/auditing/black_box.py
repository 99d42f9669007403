"""Pictures of classes by answers alone: what an attacker draws who has no model, but may ask a client for answers.

Gradients are estimated from the answers at random displacements of a picture, in pairs (natural evolution strategies:
Ilyas et al. 2018, https://arxiv.org/abs/1804.08598, section 3.1, also for answers that are the class alone, section
3.3). The mean over displacements changes smoothly even where answers do not, as rounded ones.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from pflcli.prediction.disclosure import Disclosure

DIRECTIONS, SPREAD = 100, 0.2
"""Pairs of displacements at each step, and their standard deviation in pixels of [0, 1]."""


def gradient(
    answer: Callable[[Tensor], Tensor], disclosed: Disclosure, pictures: Tensor, draw: np.random.Generator
) -> Tensor:
    """Return the estimated gradients (C, channels, h, w) of the cost of ``pictures``, each for the class of its place.

    The cost is -log p of the class in what leaves of an answer; a probability below half a unit counts as that.
    """
    count, shape = len(pictures), pictures.shape[1:]
    u = torch.from_numpy(draw.standard_normal((DIRECTIONS, *shape), dtype=np.float32))
    target, costs = np.repeat(np.arange(count), DIRECTIONS), []
    for sign in (SPREAD, -SPREAD):
        p = disclosed.of(answer((pictures[:, None] + sign * u).reshape(-1, *shape)).numpy())
        own = np.maximum(p[np.arange(len(p)), target], max(disclosed.doubt, _LEAST))
        costs.append(torch.from_numpy(-np.log(own)).reshape(count, DIRECTIONS))
    slope = (costs[0] - costs[1]) / (2 * SPREAD * DIRECTIONS)
    return (slope @ u.flatten(1)).reshape(pictures.shape)


_LEAST = 1e-6
"""The least probability of which a cost is taken, so that one displacement does not outweigh all others."""
