"""Networks of a stack of models, and what a step of local training asks of them.

A method says at which models each client's loss is computed and what its gradient moves: a ``Pass``. A network computes
passes in its fastest form, and takes the steps. Only the network is differentiated automatically, and the loss by the
outputs. All tensors have a leading axis over the clients of a stack, of which there may be one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from pflcli.core import parameters
from pflcli.core.engine.optimizer import Optimizer, Update
from pflcli.core.engine.tasks import Task
from pflcli.core.errors import ComputationError
from pflcli.core.parameters import Stacked


class _MeanLoss(torch.autograd.Function):
    """``Task.mean_losses`` for autograd, which would otherwise take several passes over the outputs."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, y: Tensor, weight: Tensor, task: Task) -> Tensor:
        """Return the losses (a,)."""
        losses, grad = task.mean_losses(outputs, y, weight)
        ctx.save_for_backward(grad)
        return losses

    @staticmethod
    def backward(ctx: Any, *by_losses: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradients (a, n, C) by the outputs."""
        (grad,) = ctx.saved_tensors
        return grad * by_losses[0][:, None, None], None, None, None


@dataclass(frozen=True)
class StackedBatch:
    """Minibatches ``x`` (a, n, ...), ``y`` (a, n), the clients' ``own`` constants (a, ...), and their ``shared`` ones.

    ``weight`` (a, n) adds up to one for each client, unless samples have weights of their own; it is zero for padding.
    ``draws`` (a,) are the clients' random generators.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    own: Stacked
    shared: parameters.Params
    task: Task
    draws: Sequence[np.random.Generator] = ()

    @property
    def sizes(self) -> list[int]:
        """Return the number of samples in each client's minibatch, without padding at the end."""
        return sizes(self.weight)

    @property
    def is_unpadded_client(self) -> bool:
        """Whether this is the minibatch of one client, without padding."""
        return len(self.x) == 1 and bool(self.weight[0, -1])

    def mean(self, values: Tensor) -> Tensor:
        """Return each client's mean (a,) of the values (a, n) of its samples."""
        return (values * self.weight).sum(dim=1)

    def loss(self, outputs: Tensor) -> Tensor:
        """Return each client's mean loss (a,) of a model's outputs (a, n, C) by the task, differentiable."""
        return cast("Tensor", _MeanLoss.apply(outputs, self.y, self.weight, self.task))  # type: ignore[no-untyped-call]


def sizes(weight: Tensor) -> list[int]:
    """Return the number of samples in each minibatch of ``weight`` (a, n), without zeros, for padding, at the end."""
    padding = (weight.flip(1) > 0).byte().argmax(dim=1)
    return [weight.shape[1] - count for count in padding.tolist()]


@dataclass(frozen=True)
class Outputs:
    """Logits (a, n, C), representations ``z`` (a, n, d), and a ``trace`` for the backward pass of these outputs."""

    logits: Tensor
    z: Tensor
    trace: Any


Loss = Callable[[Tensor, Tensor, Mapping[str, Tensor], StackedBatch], Tensor]
"""The losses (a,) of clients by their logits (a, n, C), representations (a, n, d), tensors (a, ...), and minibatches.

It is differentiated by the first two, and by those tensors that it reads and the clients train."""


@dataclass(frozen=True)
class Pass:
    """A forward and backward pass: each client's loss at the model ``at`` (a, ...), whose gradient moves parameters."""

    at: Stacked
    batch: StackedBatch
    loss: Loss | None = None
    """the loss by the outputs; None is that of the task"""
    scale: Tensor | None = None
    """factor (a,) of each client's gradient"""
    moves: str = ""
    """prefix of the tensors that the gradient moves: that by a parameter ``name`` moves the tensor ``moves + name``"""

    def clients(self) -> Iterator[Pass]:
        """Yield the pass of one client after the other, without padding."""
        batch = self.batch
        for index, size in enumerate(batch.sizes):
            row = slice(index, index + 1)
            at, own = ({name: value[row] for name, value in values.items()} for values in (self.at, batch.own))
            inputs = batch.x[row, :size], batch.y[row, :size], batch.weight[row, :size]
            one = StackedBatch(*inputs, own, batch.shared, batch.task, batch.draws[row])
            yield Pass(at, one, self.loss, None if self.scale is None else self.scale[row], self.moves)


class StackedNetwork(ABC):
    """Forward and backward passes, and steps, of one network over stacks of models.

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
        self, params: Stacked, batch: StackedBatch, names: Collection[str] | None = None
    ) -> tuple[Tensor, Stacked]:
        """Return the task's loss (a,) of the models ``params`` (a, ...), and its gradients (a, ...) by ``names``."""
        losses, grads, _ = self._differentiate(Pass(params, batch), {}, self.trained if names is None else names)
        return losses, grads

    def _differentiate(self, each: Pass, models: Stacked, names: Collection[str]) -> tuple[Tensor, Stacked, Stacked]:
        """Return the losses (a,) of a pass, its gradients by the parameters ``names``, and those by tensors read."""
        if self.one_at_a_time and not each.batch.is_unpadded_client:
            found: list[tuple[Tensor, Stacked, Stacked]] = []
            for index, one in enumerate(each.clients()):
                own = {name: value[index : index + 1] for name, value in models.items()}
                found.append(self._differentiate(one, own, names))
            losses, grads, read = zip(*found, strict=True)
            return torch.cat(losses), _concatenate(grads), _concatenate(read)
        outputs = self.forward(each.at, each.batch.x, each.batch.weight)
        loss, by_logits, by_z, by_tensors = differentiate_loss(each, outputs, models)
        return loss, self.backward(outputs, by_logits, by_z, names), by_tensors

    def step(self, models: Stacked, each: Pass, optimizer: Optimizer) -> Tensor:
        """Return the losses (a,) of a pass, and add its gradients to those of the next step of ``optimizer``.

        ``models`` (a, ...) are what the clients train. A network may move its parameters at once where the step is that
        of plain SGD, in which no gradient depends on another: its products change weights without storing gradients.
        """
        losses, grads, read = self._differentiate(each, models, self.trained)
        optimizer.add({each.moves + name: value for name, value in grads.items()})
        optimizer.add(read)
        return losses

    def descend(
        self,
        models: Stacked,
        batch: StackedBatch,
        *,
        rate: float,
        count: int = 1,
        anchor: Stacked | None = None,
        lam: float = 0.0,
    ) -> None:
        """Take ``count`` steps of gradient descent in place on the loss F(models) + lam / 2 |models - anchor|^2.

        F is the task's loss of the minibatch. ``models`` and ``anchor`` are (a, ...). Only trained parameters change.
        """
        update = Update(prox=None if anchor is None else (anchor, lam))
        optimizer = Optimizer(update, {name: models[name] for name in self.trained})
        for _ in range(count):
            optimizer.begin(rate, len(batch.x))
            self.step(models, Pass(models, batch), optimizer)
            optimizer.step()


def _concatenate(parts: Sequence[Stacked]) -> Stacked:
    """Return stacks of the same tensors as one."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def differentiate_loss(
    each: Pass, outputs: Outputs, models: Stacked, rate: float | Tensor = 1.0
) -> tuple[Tensor, Tensor | None, Tensor | None, Stacked]:
    """Return the losses (a,) of a pass, and their gradients by logits, representations, and the tensors of ``models``.

    All gradients but those by tensors are multiplied by ``rate``, a number or (a,). A gradient of None is zero.
    """
    batch, scale = each.batch, rate if each.scale is None else each.scale * rate
    if each.loss is None:
        return *batch.task.mean_losses(outputs.logits, batch.y, batch.weight, scale), None, {}
    reads = _Reads(models)
    with torch.enable_grad():
        logits, z = outputs.logits.detach().requires_grad_(), outputs.z.detach().requires_grad_()
        losses = each.loss(logits, z, reads, batch)
        if losses.shape != batch.weight.shape[:1]:  # a sum over clients would weight them by the size of the stack
            raise ComputationError(
                f"the loss of the method has shape {tuple(losses.shape)}; it must have one number per client, "
                f"{tuple(batch.weight.shape[:1])}",
                "batch.mean(values) returns the mean of each client",
            )
        total = (losses if each.scale is None else losses * each.scale).sum()
    leaves = [logits, z, *reads.leaves.values()]
    by_logits, by_z, *by_tensors = torch.autograd.grad(total, leaves, allow_unused=True)
    if not (isinstance(rate, float) and rate == 1.0):
        factor = rate[:, None, None] if isinstance(rate, Tensor) else rate
        by_logits, by_z = (None if grad is None else grad * factor for grad in (by_logits, by_z))
    read = {name: grad for name, grad in zip(reads.leaves, by_tensors, strict=True) if grad is not None}
    return losses.detach(), by_logits, by_z, read


class _Reads(Mapping[str, Tensor]):
    """Tensors (a, ...) by name. Those that are read can be differentiated by."""

    def __init__(self, tensors: Stacked) -> None:
        self._tensors = tensors
        self.leaves: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.leaves and self._tensors[name].is_floating_point():
            self.leaves[name] = self._tensors[name].detach().requires_grad_()
        return self.leaves.get(name, self._tensors[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


PassRule = Callable[[StackedNetwork, Stacked, StackedBatch], Sequence[Pass]]
"""Returns the passes of a step, given the tensors (a, ...) that the clients train. They move tensors in their order, so
no pass may be at tensors that one before it moves. It must be defined in a module, so that processes can import it."""

GradientRule = Callable[[StackedNetwork, Stacked, StackedBatch], tuple[Tensor, Stacked]]
"""Returns losses (a,) and the gradients (a, ...) by all trained tensors, for what no ``Pass`` describes.

It must be defined in a module, so that processes can import it."""
