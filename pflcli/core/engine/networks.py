"""Stacked networks that work for any network: by autograd, or by torch.func."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from pflcli.core import parameters
from pflcli.core.engine.gradients import Outputs, StackedBatch, StackedNetwork, sizes
from pflcli.core.engine.local_sgd import Batch, Model, Objective
from pflcli.core.parameters import Params, Stacked


def has_batch_norm(net: nn.Module) -> bool:
    """Whether a model normalizes over its batch. It does not if its statistics are frozen, as under an adapter."""
    norms = [module for module in net.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    return any(not getattr(norm, "is_frozen", False) for norm in norms)


def own_names(net: nn.Module, trained: Collection[str]) -> tuple[Collection[str], tuple[str, ...]]:
    """Return the names of the network's parameters, and of the trained ones, both in the network's order.

    The order of a set differs between processes, and so would sums over its members.
    """
    names = dict.fromkeys(name for name, _ in net.named_parameters())
    return names, tuple(name for name in names if name in set(trained))


def _to_single(value: Tensor) -> Tensor:
    """Return a detached tensor, in single precision if it is in bfloat16."""
    return value.detach().float() if value.dtype == torch.bfloat16 else value.detach()


def _grads(outputs: Sequence[Tensor], by_outputs: Sequence[Tensor | None], weights: list[Tensor]) -> Sequence[Tensor]:
    """Return the gradients by ``weights`` of a loss with gradients ``by_outputs``; None is zero."""
    if not weights:
        return []
    with torch.enable_grad():
        # Differentiate one number: given ``grad_outputs``, torch.autograd.grad imports SymPy, which takes a second.
        pairs = zip(outputs, by_outputs, strict=True)
        loss = sum(((output * grad).sum() for output, grad in pairs if grad is not None), torch.zeros(()))
    return torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)


class ObjectiveNetwork(StackedNetwork):
    """A network that also differentiates objectives of its parameters."""

    @abstractmethod
    def differentiate(
        self, objective: Objective, params: Stacked, batch: StackedBatch, names: Sequence[str]
    ) -> tuple[Tensor, Stacked]:
        """Return the objectives (a,) of clients and their gradients (a, ...) by the tensors ``names``."""


class AutogradNetwork(ObjectiveNetwork):
    """Passes of one model at a time, on the worker's network, by autograd."""

    one_at_a_time = True

    def __init__(
        self, net: nn.Module, trained: Collection[str], precision: str = "float32", *, frozen_norm: bool = False
    ) -> None:
        self.parameters, self.trained = own_names(net, trained)
        self._net, self._precision, self._model = net.train(not frozen_norm), precision, Model(net)
        self._needs_two = has_batch_norm(net) and not frozen_norm
        self._state = parameters.state(net)
        self._weights = {name: value.requires_grad_() for name, value in net.named_parameters()}

    def forward(self, params: Stacked, x: Tensor, weight: Tensor | None = None) -> Outputs:
        """Return the outputs of the only model of ``params`` (1, ...) for ``x`` (1, n, ...), in training mode."""
        if self._needs_two:  # a single sample trains with the running statistics
            self._net.train(x.shape[1] > 1)
        with torch.no_grad():
            for name, value in self._state.items():
                value.copy_(params[name][0])
        with torch.enable_grad(), _autocast(x, self._precision):
            z = self._net.body(x[0])  # type: ignore[operator]
            logits = self._net.head(z)  # type: ignore[operator]
        with torch.no_grad():
            for name, value in self._state.items():
                if name not in self.parameters and self._net.training:
                    params[name][0].copy_(value)
        return Outputs(_to_single(logits)[None], _to_single(z)[None], (logits, z))

    def backward(
        self, outputs: Outputs, logits: Tensor | None, z: Tensor | None = None, names: Collection[str] | None = None
    ) -> Stacked:
        """Return the gradients (1, ...) by the parameters ``names``, see ``StackedNetwork``."""
        names = self.trained if names is None else names
        weights, grads = [self._weights[name] for name in names], [None if g is None else g[0] for g in (logits, z)]
        return {name: value[None] for name, value in zip(names, _grads(outputs.trace, grads, weights), strict=True)}

    def differentiate(
        self, objective: Objective, params: Stacked, batch: StackedBatch, names: Sequence[str]
    ) -> tuple[Tensor, Stacked]:
        """Return the objective (1,) of the only client and its gradients (1, ...) by the tensors ``names``."""
        if self._needs_two:
            self._net.train(batch.x.shape[1] > 1)
        tensors, own = parameters.pick(params, 0), parameters.pick(batch.own, 0)
        leaves = [tensors[name].detach().requires_grad_() for name in names]
        with torch.enable_grad(), _autocast(batch.x, self._precision):
            one = Batch(batch.x[0], batch.y[0], batch.weight[0], own, batch.shared, batch.task)
            loss = objective(self._model, {**tensors, **dict(zip(names, leaves, strict=True))}, one)
        grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        return loss.detach()[None], {name: grad[None] for name, grad in zip(names, grads, strict=True)}


class VmappedNetwork(ObjectiveNetwork):
    """Passes of a stack of any network, as one batched program.

    The statistics of BatchNorm cannot ignore padding, so clients of a network with BatchNorm pass together only if
    their minibatches have the same size.
    """

    def __init__(
        self, net: nn.Module, trained: Collection[str], precision: str = "float32", *, frozen_norm: bool = False
    ) -> None:
        self.parameters, self.trained = own_names(net, trained)
        self._net, self._precision, self._model = net.train(not frozen_norm), precision, Model(net)
        self._by_size = has_batch_norm(net) and not frozen_norm
        self._aliases = parameters.aliases(net)

    def forward(self, params: Stacked, x: Tensor, weight: Tensor | None = None) -> Outputs:
        """Return the outputs of the models ``params`` (a, ...) for ``x`` (a, n, ...), in training mode."""
        groups = []
        for rows, size in self._groups(x, weight):
            with self._rows(params, rows) as models:
                groups.append((rows, self._forward(models, x[rows, :size])))
        logits, z = (_to_single(output) for output in groups[0][1][:2])
        if self._by_size:  # put the groups together, padded
            wholes = tuple(part.new_zeros(*x.shape[:2], *part.shape[2:]) for part in (logits, z))
            for rows, outputs in groups:
                for whole, output in zip(wholes, outputs[:2], strict=True):
                    whole[rows, : output.shape[1]] = _to_single(output)
            logits, z = wholes
        return Outputs(logits, z, groups)

    def _groups(self, x: Tensor, weight: Tensor | None) -> list[tuple[slice | Tensor, int]]:
        """Return clients that pass together, and the size of their minibatches in ``x`` (a, n, ...)."""
        if not self._by_size:
            return [(slice(None), x.shape[1])]
        found = np.asarray([x.shape[1]] * len(x) if weight is None else sizes(weight))
        return [(torch.from_numpy(np.flatnonzero(found == size)).to(x.device), int(size)) for size in np.unique(found)]

    @contextmanager
    def _rows(self, params: Stacked, rows: slice | Tensor) -> Iterator[Stacked]:
        """Lend models of these clients, and keep the statistics to which the block changes them."""
        models = {name: value[rows] for name, value in params.items()}
        yield models
        if not isinstance(rows, slice):
            for name, value in models.items():  # these are copies
                if name in self._aliases and name not in self.parameters:
                    params[name][rows] = value

    def _forward(self, params: Stacked, x: Tensor) -> tuple[Tensor, Tensor, Stacked]:
        """Return the logits and representations of a stack of models for batches of one size, and their weights."""
        if self._by_size:  # a single sample trains with the running statistics
            self._net.train(x.shape[1] > 1)
        # Copy, because other threads change other rows of the same tensor in place before the backward pass.
        weights = {name: params[name].detach().clone().requires_grad_() for name in self.parameters}
        buffers = {name: value for name, value in params.items() if name in self._aliases and name not in weights}
        with torch.enable_grad(), _autocast(x, self._precision):
            logits, z = vmap(self._one)(weights, buffers, x)
        return logits, z, weights

    def _one(self, weights: Params, buffers: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self._model.features({**weights, **buffers}, x)
        return self._model.head({**weights, **buffers}, z), z

    def backward(
        self, outputs: Outputs, logits: Tensor | None, z: Tensor | None = None, names: Collection[str] | None = None
    ) -> Stacked:
        """Return the gradients (a, ...) by the parameters ``names``, see ``StackedNetwork``."""
        names, grads = self.trained if names is None else names, dict[str, Tensor]()
        for rows, (*own, weights) in outputs.trace:
            size = own[0].shape[1]
            by_outputs = [None if grad is None else grad[rows, :size] for grad in (logits, z)]
            values = _grads(own, by_outputs, [weights[name] for name in names])
            if isinstance(rows, slice):
                return dict(zip(names, values, strict=True))
            for name, value in zip(names, values, strict=True):
                grads.setdefault(name, value.new_empty(len(outputs.logits), *value.shape[1:]))[rows] = value
        return grads

    def differentiate(
        self, objective: Objective, params: Stacked, batch: StackedBatch, names: Sequence[str]
    ) -> tuple[Tensor, Stacked]:
        """Return the objectives (a,) of clients and their gradients (a, ...) by the tensors ``names``."""

        def loss(weights: Params, fixed: Params, own: Params, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
            with _autocast(x, self._precision):
                return objective(self._model, {**fixed, **weights}, Batch(x, y, weight, own, batch.shared, batch.task))

        losses = next(iter(params.values())).new_empty(len(batch.x))
        grads = {name: torch.empty_like(params[name]) for name in names}
        for rows, size in self._groups(batch.x, batch.weight):
            if self._by_size:
                self._net.train(size > 1)
            with self._rows(params, rows) as models:
                weights = {name: models[name] for name in names}
                fixed = {name: value for name, value in models.items() if name not in weights}
                own = {name: value[rows] for name, value in batch.own.items()}
                samples = (value[rows, :size] for value in (batch.x, batch.y, batch.weight))
                group, losses[rows] = vmap(grad_and_value(loss))(weights, fixed, own, *samples)
            for name, value in group.items():
                grads[name][rows] = value
        return losses, grads


def _autocast(x: Tensor, precision: str) -> torch.autocast:
    return torch.autocast(x.device.type, torch.bfloat16, enabled=precision == "bfloat16")
