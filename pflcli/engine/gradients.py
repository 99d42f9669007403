"""Forward and backward passes of a stack of models, for methods that compute the gradients of their clients themselves.

A ``GradientRule`` says what a client's gradients are, in terms of passes of the network: a method with two models or an
inner loop takes two or more passes per step. The network runs in its fastest form, and nothing but the network is
differentiated automatically. All tensors have a leading axis over the clients of a stack, which may be one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from pflcli import parameters
from pflcli.parameters import Stacked


@dataclass(frozen=True)
class StackedBatch:
    """Minibatches ``x`` (a, n, ...), ``y`` (a, n), ``own`` constants (a, ...), and constants ``shared`` by all clients.

    ``weight`` (a, n) adds up to one for each client, unless samples have weights of their own; it is zero for padding.
    ``draws`` (a,) are the clients' generators, for rules that draw. ``rate`` (a,) are learning rates where ``descend``
    takes the steps of plain SGD.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    own: Stacked
    shared: parameters.Params
    draws: Sequence[np.random.Generator] = ()
    rate: Tensor | None = None

    @property
    def sizes(self) -> list[int]:
        """Return how many samples there are in each client's batch up to the last that counts."""
        padding = (self.weight.flip(1) > 0).byte().argmax(dim=1)
        return [self.weight.shape[1] - count for count in padding.tolist()]


@dataclass(frozen=True)
class Outputs:
    """Logits (a, n, C) and representations ``z`` (a, n, d) of a forward pass, and what its backward pass needs."""

    logits: Tensor
    z: Tensor
    trace: Any


class StackedNetwork(ABC):
    """Passes of one network over stacks of models, and what follows from them.

    Take the backward pass of some outputs before the next forward pass, or never.
    """

    parameters: Collection[str]
    """the names of the network's parameters, in its order, without buffers"""
    trained: Collection[str]
    """those of them that the clients train"""
    one_at_a_time: ClassVar[bool] = False
    """whether the network passes stacks of one model"""

    @abstractmethod
    def forward(self, params: Stacked, x: Tensor, weight: Tensor | None = None) -> Outputs:
        """Return the outputs of the models ``params`` (a, ...) for ``x`` (a, n, ...), in training mode.

        ``params`` has every parameter and buffer of the network; statistics of BatchNorm are updated in place. Samples
        of ``weight`` (a, n) zero at the end of a client's batch may be left out: their outputs are then zeros, and
        gradients by these are taken for zero.
        """

    @abstractmethod
    def backward(
        self, outputs: Outputs, logits: Tensor | None, z: Tensor | None = None, names: Collection[str] | None = None
    ) -> Stacked:
        """Return the gradients (a, ...) of parameters, by default the trained ones, for gradients of the outputs.

        ``logits`` (a, n, C) and ``z`` (a, n, d) are the gradients of the loss by the logits, and by the
        representations where the loss does not go through the head. ``logits`` may be overwritten.
        """

    def gradient(
        self,
        params: Stacked,
        batch: StackedBatch,
        names: Collection[str] | None = None,
        scale: Tensor | None = None,
        models: Stacked | None = None,
    ) -> tuple[Tensor, Stacked]:
        """Return the cross-entropy (a,) of the models ``params`` (a, ...), and its gradients (a, ...).

        The gradients are multiplied by the ``scale`` (a,) of each client. Given ``models`` (a, ...), these ``descend``.
        """
        if len(batch.x) > 1 and self.one_at_a_time:
            return self._gradient_one_by_one(params, batch, self.trained if names is None else names, scale)
        outputs = self.forward(params, batch.x, batch.weight)
        losses, grad = cross_entropy(outputs.logits, batch.y, batch.weight, scale)
        if models is not None:
            return losses, self.descend(models, batch, outputs, grad)
        return losses, self.backward(outputs, grad, names=names)

    def _gradient_one_by_one(
        self, params: Stacked, batch: StackedBatch, names: Collection[str], scale: Tensor | None
    ) -> tuple[Tensor, Stacked]:
        """Do as ``gradient`` with one model at a time, without the padding of each batch."""
        losses, grads = torch.empty_like(batch.weight[:, 0]), {name: torch.empty_like(params[name]) for name in names}
        for index, size in enumerate(batch.sizes):
            row = slice(index, index + 1)
            own = StackedBatch(batch.x[row, :size], batch.y[row, :size], batch.weight[row, :size], {}, {})
            models = {name: value[row] for name, value in params.items()}
            losses[row], own_grads = self.gradient(models, own, names, None if scale is None else scale[row])
            for name, value in own_grads.items():
                grads[name][row] = value
        return losses, grads

    def descend(
        self, models: Stacked, batch: StackedBatch, outputs: Outputs, logits: Tensor | None, z: Tensor | None = None
    ) -> Stacked:
        """Return the gradients (a, ...) along which the trained parameters of ``models`` (a, ...) are to descend.

        Where a step is that of plain SGD, and the network takes it without copies of gradients, it is taken here and
        nothing is returned. So a rule reads ``models`` before it calls this, and passes them on as it got them.
        ``logits`` and ``z`` are those of ``backward``.
        """
        if batch.rate is None:
            return self.backward(outputs, logits, z)
        rate = batch.rate[:, None, None]
        by_logits, by_z = (None if by_output is None else by_output * rate for by_output in (logits, z))
        self.subtract_gradients(outputs, by_logits, by_z, models)
        return {}

    def subtract_gradients(self, outputs: Outputs, logits: Tensor | None, z: Tensor | None, models: Stacked) -> None:
        """Subtract the gradients that ``backward`` returns from the trained parameters of ``models`` (a, ...)."""
        for name, grad in self.backward(outputs, logits, z).items():
            models[name].sub_(grad)

    def proximal_steps(
        self, params: Stacked, anchor: Stacked, batch: StackedBatch, *, lam: float, rate: float, count: int = 1
    ) -> None:
        """Take ``count`` steps of gradient descent in place on the loss F(params) + lam / 2 |params - anchor|^2.

        F is the cross-entropy. ``params`` and ``anchor`` are models (a, ...); only trained parameters change.
        """
        weights, centres = [params[name] for name in self.trained], [anchor[name] for name in self.trained]
        for _ in range(count):
            step = self.gradient(params, batch)[1]
            grads = [step[name] for name in self.trained]
            if lam:
                torch._foreach_add_(grads, torch._foreach_sub(weights, centres), alpha=lam)
            torch._foreach_add_(weights, grads, alpha=-rate)


GradientRule = Callable[[StackedNetwork, Stacked, StackedBatch], tuple[Tensor, Stacked]]
"""Returns losses (a,) and the gradients of all trained tensors (a, ...) but those that ``descend`` moved.

It is defined in a module, so that processes can import it."""


def cross_entropy(logits: Tensor, y: Tensor, weight: Tensor, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the losses (a,) of logits (a, n, C), weighted by ``weight`` (a, n), and their gradients by the logits.

    The gradients are multiplied by the ``scale`` (a,) of each client.
    """
    logp, true = torch.log_softmax(logits, dim=2), y[..., None]
    losses = -(logp.gather(2, true)[..., 0] * weight).sum(dim=1)
    grad = logp.exp_().scatter_add_(2, true, torch.full_like(true, -1, dtype=logp.dtype))
    return losses, grad.mul_((weight if scale is None else weight * scale[:, None])[..., None])


def cross_entropy_rule(network: StackedNetwork, params: Stacked, batch: StackedBatch) -> tuple[Tensor, Stacked]:
    """Return the cross-entropy (a,) of clients and its gradients: the rule of methods that have no other."""
    return network.gradient(params, batch)
