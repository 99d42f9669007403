"""Scaled dot-product attention over a few keys, some of which may be missing.

Vaswani et al. (2017), https://arxiv.org/abs/1706.03762, Eq. 1. FedAttn and FedHAM use it. Pure tensor code: it runs
under ``torch.func`` too.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor


def compute_weights(query: Tensor, keys: Tensor, allowed: Tensor) -> Tensor:
    """Return softmax(keys query / sqrt(r)) (..., n) of ``query`` (..., r) over the ``allowed`` (..., n) ``keys``.

    ``keys`` (..., n, r). The weights are zeros where no key is allowed.
    """
    logits = (keys @ query[..., None])[..., 0] / math.sqrt(query.shape[-1])
    floor = torch.finfo(logits.dtype).min
    logits = torch.where(allowed, logits, floor)
    # The largest logit is a constant of softmax, so no gradient goes through it.
    exponentials = torch.exp(logits - logits.amax(dim=-1, keepdim=True).detach()) * allowed
    return exponentials / exponentials.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(logits.dtype).tiny)


def draw_xavier(rows: int, columns: int, rng: np.random.Generator) -> Tensor:
    """Draw a float64 matrix uniformly in +-sqrt(6 / (rows + columns)) (Glorot & Bengio, 2010, Eq. 16)."""
    bound = math.sqrt(6 / (rows + columns))
    return torch.from_numpy(rng.uniform(-bound, bound, size=(rows, columns)))
