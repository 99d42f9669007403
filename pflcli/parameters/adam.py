"""Adam with moments as plain tensors, for parameters that a server updates between rounds.

Kingma & Ba (2015), https://arxiv.org/abs/1412.6980, Algorithm 1. Local training uses ``engine.optimizer``.
"""

from __future__ import annotations

from typing import TypedDict

import torch

from pflcli.parameters import Params

_BETAS, _EPS = (0.9, 0.999), 1e-8


class Moments(TypedDict):
    """The state of Adam: both moments of each gradient, and the number of steps (0-d)."""

    first: Params
    second: Params
    steps: torch.Tensor


def moments(params: Params) -> Moments:
    """Return the moments before the first step."""
    zeros = {name: torch.zeros_like(value) for name, value in params.items()}
    return {"first": zeros, "second": {n: v.clone() for n, v in zeros.items()}, "steps": torch.tensor(0)}


def step(params: Params, grads: Params, previous: Moments, lr: float) -> tuple[Params, Moments]:
    """Return the parameters after one step against ``grads``, and the new moments."""
    steps = previous["steps"] + 1
    first = {n: _BETAS[0] * previous["first"][n] + (1 - _BETAS[0]) * g for n, g in grads.items()}
    second = {n: _BETAS[1] * previous["second"][n] + (1 - _BETAS[1]) * g * g for n, g in grads.items()}
    scale = [1 - beta ** int(steps) for beta in _BETAS]
    moved = {
        name: value - lr * (first[name] / scale[0]) / ((second[name] / scale[1]).sqrt() + _EPS)
        for name, value in params.items()
    }
    return moved, {"first": first, "second": second, "steps": steps}
