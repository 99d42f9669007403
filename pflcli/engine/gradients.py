"""Forward and backward passes of a stack of models, for methods that compute the gradients of their clients themselves.

A ``GradientRule`` computes a client's gradients by passes of the network: a method with two models or an inner loop
takes two or more passes per step. The network runs in its fastest form, and only the network is differentiated
automatically. All tensors have a leading axis over the clients of a stack, of which there may be one.
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
    """Minibatches ``x`` (a, n, ...), ``y`` (a, n), the clients' ``own`` constants (a, ...), and their ``shared`` ones.

    ``weight`` (a, n) adds up to one for each client, unless samples have weights of their own; it is zero for padding.
    ``draws`` (a,) are the clients' random generators. ``rate`` (a,) are learning rates if ``StackedNetwork.descend``
    takes the steps, and None otherwise.
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
        """Return the number of samples in each client's minibatch, without padding at the end."""
        padding = (self.weight.flip(1) > 0).byte().argmax(dim=1)
        return [self.weight.shape[1] - count for count in padding.tolist()]


@dataclass(frozen=True)
class Outputs:
    """Logits (a, n, C), representations ``z`` (a, n, d), and a ``trace`` for the backward pass of these outputs."""

    logits: Tensor
    z: Tensor
    trace: Any


class StackedNetwork(ABC):
    """Forward and backward passes of one network over stacks of models.

    The backward pass of some outputs must come before the next forward pass.
    """

    parameters: Collection[str]
    """the names of the network's parameters, in its order, without buffers"""
    trained: Collection[str]
    """the names of the parameters that the clients train"""
    one_at_a_time: ClassVar[bool] = False
    """whether forward and backward passes take stacks of one model only"""

    @abstractmethod
    def forward(self, params: Stacked, x: Tensor, weight: Tensor | None = None) -> Outputs:
        """Return the outputs of the models ``params`` (a, ...) for ``x`` (a, n, ...), in training mode.

        ``params`` contains every parameter and buffer of the network; statistics of BatchNorm are updated in place. The
        network may skip samples with a ``weight`` (a, n) of zero at the end of a minibatch. Their outputs are then
        zeros, and ``backward`` ignores gradients by them.
        """

    @abstractmethod
    def backward(
        self, outputs: Outputs, logits: Tensor | None, z: Tensor | None = None, names: Collection[str] | None = None
    ) -> Stacked:
        """Return the gradients (a, ...) by the parameters ``names``, by default the trained ones.

        ``logits`` (a, n, C) are the gradients of the loss by the logits, which may be overwritten. ``z`` (a, n, d) are
        those by the representations, without the part that goes through the head.
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

        The gradients are multiplied by the ``scale`` (a,) of each client. With ``models`` (a, ...), return what
        ``descend`` returns for them instead.
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
        """Do the same as ``gradient``, one model at a time and without padding."""
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
        """Return the gradients (a, ...) for the trained parameters of ``models`` (a, ...), or take the step.

        If the batch has learning rates, this subtracts the gradients times the rates from ``models`` in place, and
        returns no gradients. A gradient rule must therefore read ``models`` before it calls this. ``logits`` and ``z``
        are those of ``backward``.
        """
        if batch.rate is None:
            return self.backward(outputs, logits, z)
        rate = batch.rate[:, None, None]
        by_logits, by_z = (None if by_output is None else by_output * rate for by_output in (logits, z))
        self.subtract_gradients(outputs, by_logits, by_z, models)
        return {}

    def subtract_gradients(self, outputs: Outputs, logits: Tensor | None, z: Tensor | None, models: Stacked) -> None:
        """Subtract the gradients of ``backward`` from the trained parameters of ``models`` (a, ...)."""
        for name, grad in self.backward(outputs, logits, z).items():
            models[name].sub_(grad)

    def proximal_steps(
        self, params: Stacked, anchor: Stacked, batch: StackedBatch, *, lam: float, rate: float, count: int = 1
    ) -> None:
        """Take ``count`` steps of gradient descent in place on the loss F(params) + lam / 2 |params - anchor|^2.

        F is the cross-entropy. ``params`` and ``anchor`` are models (a, ...). Only trained parameters change.
        """
        weights, centres = [params[name] for name in self.trained], [anchor[name] for name in self.trained]
        for _ in range(count):
            step = self.gradient(params, batch)[1]
            grads = [step[name] for name in self.trained]
            if lam:
                torch._foreach_add_(grads, torch._foreach_sub(weights, centres), alpha=lam)
            torch._foreach_add_(weights, grads, alpha=-rate)


GradientRule = Callable[[StackedNetwork, Stacked, StackedBatch], tuple[Tensor, Stacked]]
"""Returns losses (a,) and the gradients (a, ...) by all trained tensors except those whose step ``descend`` took.

It must be defined in a module, so that processes can import it."""


def cross_entropy(logits: Tensor, y: Tensor, weight: Tensor, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the losses (a,) of logits (a, n, C) with sample weights ``weight`` (a, n), and their gradients.

    The gradients are multiplied by the ``scale`` (a,) of each client.
    """
    logp, true = torch.log_softmax(logits, dim=2), y[..., None]
    losses = -(logp.gather(2, true)[..., 0] * weight).sum(dim=1)
    grad = logp.exp_().scatter_add_(2, true, torch.full_like(true, -1, dtype=logp.dtype))
    return losses, grad.mul_((weight if scale is None else weight * scale[:, None])[..., None])


def cross_entropy_rule(network: StackedNetwork, params: Stacked, batch: StackedBatch) -> tuple[Tensor, Stacked]:
    """Return the cross-entropy (a,) of clients and its gradients: the rule of methods without a rule of their own."""
    return network.gradient(params, batch)
