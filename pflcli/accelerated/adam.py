"""A step of Adam along gradients that are outer products of vectors, and so need not lie in memory."""

from __future__ import annotations

import math

from pflcli.accelerated.compiler import Array, compiled


@compiled
def step(
    weights: Array,
    left: Array,
    right: Array,
    first: Array,
    second: Array,
    rate: Array,
    betas: tuple[float, float],
    eps: float,
    count: int,
) -> None:
    """Change ``weights`` (a, r, c) by step ``count``, from 1, for gradients ``left`` (a, r) times ``right`` (a, c).

    ``rate`` (a,) are learning rates. The moments ``first`` and ``second`` (a, r, c) are zero before the first step,
    whatever their memory contains. Kingma & Ba (2015), https://arxiv.org/abs/1412.6980, Algorithm 1.
    """
    number = weights.dtype.type
    keep1, keep2, new1, new2 = number(betas[0]), number(betas[1]), number(1 - betas[0]), number(1 - betas[1])
    scale, least = number(1 / math.sqrt(1 - betas[1] ** count)), number(eps)
    for client in range(len(weights)):
        by, size = right[client], number(rate[client] / (1 - betas[0] ** count))
        for i in range(weights.shape[1]):
            w, m, v, factor = weights[client, i], first[client, i], second[client, i], left[client, i]
            if count == 1:
                m[:] = 0
                v[:] = 0
            for j in range(len(w)):
                grad = factor * by[j]
                m[j] = keep1 * m[j] + new1 * grad
                v[j] = keep2 * v[j] + new2 * grad * grad
                w[j] -= size * m[j] / (math.sqrt(v[j]) * scale + least)
