"""One step of an optimizer, for one model or a stack of them: SGD with momentum, weight decay and anchor, or Adam."""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType

import torch
from torch import Tensor

from pflcli.engine.local_sgd import LocalSGD

_BETAS, _EPS = (0.9, 0.999), 1e-8
"""Kingma & Ba (2015), https://arxiv.org/abs/1412.6980, Algorithm 1."""


class Update:
    """Takes optimizer steps on weights in place. Momentum starts at zero and is kept between steps.

    ``weights`` are those of one model, or of a stack whose first ``active`` rows still train. ``anchor`` is in the
    order of the weights, and broadcasts against them.
    """

    def __init__(self, plan: LocalSGD, weights: Sequence[Tensor], anchor: Sequence[Tensor] = ()) -> None:
        self._plan, self._anchor = plan, list(anchor) if plan.prox and plan.prox[1] else []
        self._first = [torch.zeros_like(w) for w in weights] if plan.momentum or plan.optimizer == "adam" else []
        self._second = [torch.zeros_like(w) for w in weights] if plan.optimizer == "adam" else []
        self._steps = 0

    def __call__(self, weights: list[Tensor], grads: list[Tensor], rate: float | Tensor) -> None:
        """Apply ``grads``, which may be overwritten; ``rate`` is one number, or (active,) with stacked weights."""
        plan = self._plan
        active = slice(len(rate)) if isinstance(rate, Tensor) else slice(None)
        if plan.weight_decay:
            torch._foreach_add_(grads, weights, alpha=plan.weight_decay)
        if self._anchor:
            assert plan.prox is not None
            anchor = [a[active] if a.ndim == w.ndim else a for a, w in zip(self._anchor, weights, strict=True)]
            torch._foreach_add_(grads, [w - a for w, a in zip(weights, anchor, strict=True)], alpha=plan.prox[1])
        if plan.optimizer == "adam":
            self._adam(weights, grads, rate, active)
        else:
            if plan.momentum:
                momentum = [buffer[active] for buffer in self._first]
                torch._foreach_mul_(momentum, plan.momentum)
                torch._foreach_add_(momentum, grads)
                grads = momentum
            if isinstance(rate, Tensor):
                torch._foreach_sub_(weights, [g * rate.view(-1, *[1] * (g.ndim - 1)) for g in grads])
            else:
                torch._foreach_add_(weights, grads, alpha=-rate)
        if plan.bounds is not None:
            torch._foreach_clamp_min_(weights, plan.bounds[0])
            torch._foreach_clamp_max_(weights, plan.bounds[1])

    def _adam(self, weights: list[Tensor], grads: list[Tensor], rate: float | Tensor, active: slice) -> None:
        """Take a step of Adam in one pass over the weights, per client where their rates differ."""
        self._steps += 1
        state = [weights, grads, *([buffer[active] for buffer in buffers] for buffers in (self._first, self._second))]
        parts = _alike(rate) if isinstance(rate, Tensor) else [(..., rate)]
        for part, own_rate in parts:
            own_weights, own_grads, first, second = ([tensor[part] for tensor in tensors] for tensors in state)
            torch._fused_adam_(
                own_weights,
                own_grads,
                first,
                second,
                [],
                [torch.full((), self._steps, dtype=torch.float32, device=weight.device) for weight in weights],
                lr=own_rate,
                beta1=_BETAS[0],
                beta2=_BETAS[1],
                weight_decay=0.0,
                eps=_EPS,
                amsgrad=False,
                maximize=False,
            )


def _alike(rate: Tensor) -> list[tuple[slice | EllipsisType, float]]:
    """Return parts of a stack with one learning rate each, of ``rate`` (active,): all clients, or one by one."""
    rates: list[float] = rate.tolist()
    if len(set(rates)) == 1:
        return [(..., rates[0])]
    return [(slice(index, index + 1), own_rate) for index, own_rate in enumerate(rates)]
