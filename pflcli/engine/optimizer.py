"""One step of an optimizer on one model or on a stack of models: SGD with momentum, Adam or AdamW.

A step may clip gradients, and may add weight decay, the pull of an anchor, and a drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType

import torch
from torch import Tensor

from pflcli.engine.backend import Move
from pflcli.engine.local_sgd import LocalSGD

_BETAS, _EPS = (0.9, 0.999), 1e-8
"""Kingma & Ba (2015), https://arxiv.org/abs/1412.6980, Algorithm 1."""


class Optimizer:
    """Takes steps on weights in place. Momentum starts at zero and is kept between steps.

    ``names`` and ``weights`` are those of one model, or of a stack of clients (m, ...) sorted so that the ``active``
    clients, which still train, come first.
    """

    def __init__(self, plan: LocalSGD, names: Sequence[str], weights: Sequence[Tensor]) -> None:
        self._plan, self._anchor, self._drift = plan, plan.anchors(names), plan.drift(names)
        momentum = plan.momentum and plan.optimizer == "sgd"
        self._first = [torch.zeros_like(w) for w in weights] if momentum else []
        self._second: list[Tensor] = []
        self._steps = 0
        is_apart = [plan.clips_apart is not None and name.startswith(plan.clips_apart) for name in names]
        self._clipped = [[i for i, each in enumerate(is_apart) if each is apart] for apart in (False, True)]
        """indices of the parameters whose gradients are clipped together"""
        self.is_plain = plan.is_plain
        """whether a step is ``pull`` and then minus the rate times the gradients, which a caller may subtract itself"""
        self.is_bare = self.is_plain and not (self._anchor or self._drift)
        """whether, in addition, ``pull`` does nothing"""

    def step(self, weights: list[Tensor], grads: list[Tensor], rate: float | Tensor) -> None:
        """Take a step along the gradients ``grads``, which may be overwritten.

        ``rate`` is the learning rate: one number or, for stacked weights, one per active client (active,).
        """
        if not weights:  # none are trained, or all changed where their gradients were computed
            return
        plan = self._plan
        active = slice(len(rate)) if isinstance(rate, Tensor) else slice(None)
        if plan.clip is not None:
            for indices in filter(None, self._clipped):
                _clip([grads[index] for index in indices], plan.clip, stacked=isinstance(rate, Tensor))
        if self.is_plain:
            for index, weight in enumerate(weights):
                self.pull(index, weight, rate)
        else:
            self._add_penalties(weights, grads, active)
        if plan.momentum and plan.optimizer == "sgd":
            momentum = [buffer[active] for buffer in self._first]
            torch._foreach_mul_(momentum, plan.momentum)
            torch._foreach_add_(momentum, grads)
            grads = momentum
        if plan.optimizer in ("adam", "adamw"):
            self._step_adam(weights, grads, rate, active)
        elif isinstance(rate, Tensor):
            for weight, grad in zip(weights, grads, strict=True):
                weight.addcmul_(grad, _expand(rate, grad), value=-1)
        else:
            torch._foreach_add_(weights, grads, alpha=-rate)
        if plan.bounds is not None:
            torch._foreach_clamp_min_(weights, plan.bounds[0])
            torch._foreach_clamp_max_(weights, plan.bounds[1])

    def pull(self, index: int, weight: Tensor, rate: float | Tensor) -> None:
        """Take the part of a plain step that is not the gradient of the loss: towards the anchor, and by the drift.

        Each takes one pass over memory; adding them to the gradients would take three.
        """
        if self._anchor:
            assert self._plan.prox is not None
            part, anchor = rate * self._plan.prox[1], self._anchor[index]
            weight.lerp_(
                anchor[: len(weight)] if anchor.ndim == weight.ndim else anchor,
                _expand(part, weight) if isinstance(part, Tensor) else part,
            )
        if self._drift:
            drift = self._drift[index]
            if isinstance(rate, Tensor):
                weight.addcmul_(drift[: len(weight)], _expand(rate, weight), value=-1)
            else:
                weight.add_(drift, alpha=-rate)

    def move(self, index: int, weight: Tensor, rate: float) -> Move:
        """Return a plain step of one model as a ``Move``, for the product that computes the gradient."""
        anchor, drift = (values[index].contiguous() if values else None for values in (self._anchor, self._drift))
        return Move(weight, rate, anchor, rate * self._plan.prox[1] if self._plan.prox else 0.0, drift)

    def _add_penalties(self, weights: list[Tensor], grads: list[Tensor], active: slice) -> None:
        """Add weight decay, the pull of the anchor, and the drift to the gradients."""
        plan = self._plan
        if plan.weight_decay and plan.optimizer != "adamw":
            torch._foreach_add_(grads, weights, alpha=plan.weight_decay)
        if self._anchor:
            assert plan.prox is not None
            anchor = [a[active] if a.ndim == w.ndim else a for a, w in zip(self._anchor, weights, strict=True)]
            torch._foreach_add_(grads, [w - a for w, a in zip(weights, anchor, strict=True)], alpha=plan.prox[1])
        if self._drift:
            torch._foreach_add_(grads, [drift[active] for drift in self._drift])

    def _step_adam(self, weights: list[Tensor], grads: list[Tensor], rate: float | Tensor, active: slice) -> None:
        """Take a step of Adam in one pass over the weights, or one pass per client if their rates differ."""
        self._steps += 1
        if self._steps == 1:
            self._first, self._second = ([torch.zeros_like(w) for w in weights] for _ in range(2))
        state = [weights, grads, *([buffer[active] for buffer in buffers] for buffers in (self._first, self._second))]
        parts = _split_by_rate(rate) if isinstance(rate, Tensor) else [(..., rate)]
        decay = self._plan.weight_decay if self._plan.optimizer == "adamw" else 0.0
        for part, own_rate in parts:
            own_weights, own_grads, first, second = ([tensor[part] for tensor in tensors] for tensors in state)
            own_grads = [_match_strides(grad, weight) for grad, weight in zip(own_grads, own_weights, strict=True)]
            if decay:  # Loshchilov & Hutter (2019), https://arxiv.org/abs/1711.05101, Algorithm 2
                torch._foreach_mul_(own_weights, 1 - own_rate * decay)
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


def _clip(grads: list[Tensor], largest: float, *, stacked: bool) -> None:
    """Scale the gradients of one model, or of each one in a stack, in place to a joint norm of at most ``largest``."""
    if stacked:
        norms = torch.stack([torch.linalg.vector_norm(grad.reshape(len(grad), -1), dim=1) for grad in grads])
        factors = (largest / torch.linalg.vector_norm(norms, dim=0)).clamp(max=1.0)
        for grad in grads:
            grad.mul_(_expand(factors, grad))
    else:
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(grad) for grad in grads]))
        torch._foreach_mul_(grads, (largest / norm).clamp(max=1.0))


def _split_by_rate(rate: Tensor) -> list[tuple[slice | EllipsisType, float]]:
    """Return parts of a stack and the learning rate of each: all clients if ``rate`` (active,) is constant, or each."""
    rates: list[float] = rate.tolist()
    if len(set(rates)) == 1:
        return [(..., rates[0])]
    return [(slice(index, index + 1), own_rate) for index, own_rate in enumerate(rates)]


def _match_strides(grad: Tensor, weight: Tensor) -> Tensor:
    """Return a gradient with the strides of the weight.

    On a CPU the fused step of Adam ignores strides and reads memory in order, and torch.func may return transposed
    gradients.
    """
    return grad if grad.stride() == weight.stride() else torch.empty_like(weight).copy_(grad)


def _expand(values: Tensor, weight: Tensor) -> Tensor:
    """Return values (active,) with as many axes as a stacked weight."""
    return values.view(-1, *[1] * (weight.ndim - 1))
