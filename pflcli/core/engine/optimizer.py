"""One step of an optimizer on one model or on a stack of models: SGD with momentum, Adam or AdamW.

A step may clip gradients, and may add weight decay, the pull of an anchor, and a drift.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Literal

import torch
from torch import Tensor

from pflcli.core.parameters import Params, Stacked

_BETAS, _EPS = (0.9, 0.999), 1e-8
"""Kingma & Ba (2015), https://arxiv.org/abs/1412.6980, Algorithm 1."""


@dataclass(frozen=True)
class Update:
    """How gradients change weights; by default as in plain SGD. See ``LocalSGD`` for the options."""

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    clips_apart: str | None = None
    prox: tuple[Params | Stacked, float] | None = None
    drift: Stacked = field(default_factory=dict)
    bounds: tuple[float, float] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether a step is that of plain SGD, apart from an anchor and a drift."""
        return self.optimizer == "sgd" and not (self.momentum or self.weight_decay or self.bounds or self.clip)


class Optimizer:
    """Takes steps on a stack of ``weights`` (m, ...) in place. Momentum starts at zero and is kept between steps.

    In each step the first clients of the stack, the active ones, still train. The step begins with ``begin``; then
    gradients are added, and ``step`` ends it.
    """

    def __init__(self, update: Update, weights: Mapping[str, Tensor]) -> None:
        self._update, self._weights = update, dict(weights)
        self.is_plain = update.is_plain
        """whether a network may take the step itself: ``pull``, and then minus the rate times the gradients"""
        self._index = {name: index for index, name in enumerate(self._weights)}
        anchor, pull = update.prox or ({}, 0.0)
        self._anchor = [anchor[name] for name in self._weights] if pull else []
        self._drift = [update.drift[name] for name in self._weights] if update.drift else []
        has_momentum = update.momentum and update.optimizer == "sgd"
        self._first = [torch.zeros_like(weight) for weight in self._weights.values()] if has_momentum else []
        self._second: list[Tensor] = []
        self._steps = 0
        is_apart = [update.clips_apart is not None and name.startswith(update.clips_apart) for name in self._weights]
        self._clipped = [[i for i, each in enumerate(is_apart) if each is apart] for apart in (False, True)]
        """indices of the parameters whose gradients are clipped together"""
        self._grads: dict[str, Tensor] = {}
        self._pulled: set[str] = set()

    def begin(self, rate: float | Tensor, active: int) -> None:
        """Begin a step of the first ``active`` clients; ``rate`` is their learning rate, or one for each (active,)."""
        self.rate, self._active = rate, active
        self._grads, self._pulled = {}, set()

    def add(self, grads: Mapping[str, Tensor]) -> None:
        """Add gradients (active, ...), which may be overwritten; those by tensors that are not weights are ignored."""
        for name, value in grads.items():
            if name in self._weights:
                self._grads[name] = self._grads[name] + value if name in self._grads else value

    @torch.no_grad()
    def step(self) -> None:
        """End the step: change the weights by the gradients that were added."""
        update, active = self._update, slice(self._active)
        names = list(self._grads) if self.is_plain else list(self._weights)
        if not names:  # none are trained, or all changed where their gradients were computed
            return
        weights = [self._weights[name][active] for name in names]
        grads = [
            self._grads[name] if name in self._grads else torch.zeros_like(weight)
            for name, weight in zip(names, weights, strict=True)
        ]
        if self.is_plain:
            self.move(names, weights, grads)
            return
        if update.clip is not None:
            for indices in filter(None, self._clipped):
                _clip([grads[index] for index in indices], update.clip)
        self._add_penalties(weights, grads, active)
        if update.momentum and update.optimizer == "sgd":
            momentum = [buffer[active] for buffer in self._first]
            torch._foreach_mul_(momentum, update.momentum)
            torch._foreach_add_(momentum, grads)
            grads = momentum
        if update.optimizer in ("adam", "adamw"):
            self._step_adam(weights, grads, self.rate, active)
        else:
            self._subtract(weights, grads)
        if update.bounds is not None:
            torch._foreach_clamp_min_(weights, update.bounds[0])
            torch._foreach_clamp_max_(weights, update.bounds[1])

    def move(self, names: Sequence[str], weights: list[Tensor], grads: list[Tensor]) -> None:
        """Take a plain step on the weights of these names (active, ...) by their gradients."""
        for name, weight in zip(names, weights, strict=True):
            if name not in self._pulled:
                self.pull(name, weight)
        self._subtract(weights, grads)

    def _subtract(self, weights: list[Tensor], grads: list[Tensor]) -> None:
        """Subtract the rate times the gradients."""
        if isinstance(self.rate, Tensor):
            for weight, grad in zip(weights, grads, strict=True):
                weight.addcmul_(grad, _expand(self.rate, grad), value=-1)
        else:
            torch._foreach_add_(weights, grads, alpha=-self.rate)

    def pull(self, name: str, weight: Tensor) -> None:
        """Take the part of a plain step that is not the gradient of the loss: towards the anchor, and by the drift.

        Each takes one pass over memory; adding them to the gradients would take three.
        """
        if not (self._anchor or self._drift):
            return
        anchor, part, drift = self.terms(name)
        if anchor is not None:
            weight.lerp_(anchor, _expand(part, weight) if isinstance(part, Tensor) else part)
        if drift is not None:
            if isinstance(self.rate, Tensor):
                weight.addcmul_(drift, _expand(self.rate, weight), value=-1)
            else:
                weight.add_(drift, alpha=-self.rate)

    def terms(self, name: str) -> tuple[Tensor | None, float | Tensor, Tensor | None]:
        """Return the anchor of a weight, the part of the way to it that a plain step takes, and the drift.

        The caller takes this part of the step.
        """
        self._pulled.add(name)
        index, active = self._index[name], slice(self._active)
        anchor = drift = None
        part: float | Tensor = 0.0
        if self._anchor:
            assert self._update.prox is not None
            part, anchor = self.rate * self._update.prox[1], self._anchor[index]
            if anchor.ndim == self._weights[name].ndim:
                anchor = anchor[active]
        if self._drift:
            drift = self._drift[index][active]
        return anchor, part, drift

    def _add_penalties(self, weights: list[Tensor], grads: list[Tensor], active: slice) -> None:
        """Add weight decay, the pull of the anchor, and the drift to the gradients."""
        update = self._update
        if update.weight_decay and update.optimizer != "adamw":
            torch._foreach_add_(grads, weights, alpha=update.weight_decay)
        if self._anchor:
            assert update.prox is not None
            anchor = [a[active] if a.ndim == w.ndim else a for a, w in zip(self._anchor, weights, strict=True)]
            torch._foreach_add_(grads, [w - a for w, a in zip(weights, anchor, strict=True)], alpha=update.prox[1])
        if self._drift:
            torch._foreach_add_(grads, [drift[active] for drift in self._drift])

    def _step_adam(self, weights: list[Tensor], grads: list[Tensor], rate: float | Tensor, active: slice) -> None:
        """Take a step of Adam in one pass over the weights, or one pass per client if their rates differ."""
        self._steps += 1
        if self._steps == 1:
            self._first, self._second = ([torch.zeros_like(w) for w in weights] for _ in range(2))
        state = [weights, grads, *([buffer[active] for buffer in buffers] for buffers in (self._first, self._second))]
        parts = _split_by_rate(rate) if isinstance(rate, Tensor) else [(..., rate)]
        decay = self._update.weight_decay if self._update.optimizer == "adamw" else 0.0
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


def _clip(grads: list[Tensor], largest: float) -> None:
    """Scale the gradients of each model of a stack in place to a joint norm of at most ``largest``."""
    norms = torch.stack([torch.linalg.vector_norm(grad.reshape(len(grad), -1), dim=1) for grad in grads])
    factors = (largest / torch.linalg.vector_norm(norms, dim=0)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(_expand(factors, grad))


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
