"""The plan of local training: the samples, loss and options with which each client trains, in every mode."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from pflcli.core import parameters
from pflcli.core.engine.gradients import GradientRule, Loss, PassRule
from pflcli.core.engine.optimizer import Update
from pflcli.core.engine.tasks import Task
from pflcli.core.parameters import Params, Stacked, TrainedClients

LEAST_WEIGHT = 1e-30
"""Least weight of a sample in a padded minibatch: zero marks padding."""


@dataclass(frozen=True)
class Batch:
    """A minibatch: ``x`` (n, ...), ``y`` (n,), the client's ``own`` constants, and constants ``shared`` by all clients.

    ``weight`` (n,) adds up to one and is zero for padding; None is the plain mean.
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None
    own: Params
    shared: Params
    task: Task

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over samples of ``values`` (n,)."""
        return values.mean() if self.weight is None else (values * self.weight).sum()

    def loss(self, outputs: Tensor) -> Tensor:
        """Return the mean loss of a model's ``outputs`` (n, C) by the task."""
        return self.mean(self.task.losses(outputs, self.y))


class Model:
    """The network as a function of its parameters. It ignores tensors with names that it does not have."""

    def __init__(self, net: nn.Module) -> None:
        self._net = net
        self._aliases = parameters.aliases(net)
        self.parameters = frozenset(name for name, _ in net.named_parameters())
        """names of the network's parameters, without buffers"""

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        """Return the logits (n, C)."""
        return self._call(self._net, "", params, x)

    def features(self, params: Params, x: Tensor) -> Tensor:
        """Return the representation (n, d)."""
        return self._call(self._net.body, "body.", params, x)

    def head(self, params: Params, z: Tensor) -> Tensor:
        """Return the logits (n, C) of representations (n, d)."""
        return self._call(self._net.head, "head.", params, z)

    def _call(self, net: Any, prefix: str, params: Params, x: Tensor) -> Tensor:
        aliased = ((alias, value) for name, value in params.items() for alias in self._aliases.get(name, ()))
        own = {alias.removeprefix(prefix): value for alias, value in aliased if alias.startswith(prefix)}
        # With tie_weights torch would leave the values of this call in a module that has two names.
        out: Tensor = functional_call(net, own, (x,), tie_weights=False)
        return out


Objective = Callable[[Model, Params, Batch], Tensor]
"""A client's loss on a batch as a function of its parameters. It must be defined in a module."""


@dataclass(frozen=True)
class LocalSGD:
    """How each client of a cohort (m,) trains. A client without samples takes no step."""

    epochs: int
    """number of local epochs, each in an order of its own"""
    batch_size: int
    lr: NDArray[np.float64]
    """learning rate of each local epoch (epochs,), or of each epoch of each client (m, epochs); with ``steps``, of each
    step instead of each epoch"""
    momentum: float = 0.0
    weight_decay: float = 0.0
    prox: tuple[Params | Stacked, float] | None = None
    """``(anchor, mu)`` adds mu (w - anchor) to the gradient; the anchor is one model or a stack of models"""
    trainable: str | tuple[str, ...] = ""
    """prefix of the names of the parameters that are trained"""
    splits: tuple[str, ...] = ("train",)
    """splits whose samples a client trains on"""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    clip: float | None = None
    """largest Euclidean norm of the gradient of a client's loss by all trained parameters"""
    clips_apart: str | None = None
    """prefix of the names of parameters with a loss of their own, whose gradient has a norm of its own"""
    augment: tuple[str, ...] = ()
    """kinds of random changes of the images of each minibatch, see ``augmentation``"""
    precision: Literal["float32", "bfloat16"] = "float32"
    loss: Loss | None = None
    """loss by a model's outputs, which replaces that of the task"""
    pass_rule: PassRule | None = None
    """function that says at which models a step computes losses, and what their gradients move"""
    gradient: GradientRule | None = None
    """function that computes the gradients of a step"""
    objective: Objective | None = None
    """loss by the parameters, for what no other says: it is differentiated automatically as a whole"""
    adds_own: bool = False
    """whether ``own`` is a drift: a tensor for each trained parameter, which is added to its gradient"""
    passes: float = 1.0
    """number of forward and backward passes of a sample per step, for counting; a forward pass alone is 1/3"""
    sample_weights: Tensor | None = None
    """factors (m, n) of the losses of each client's samples, in their order"""
    own: Stacked = field(default_factory=dict)
    """constants of each client (m, ...) for ``objective`` and ``gradient``"""
    shared: Params = field(default_factory=dict)
    """constants that all clients share"""
    batches: int | None = None
    """largest number of minibatches per epoch"""
    steps: int | None = None
    """number of local steps, which replaces ``epochs``"""
    frozen_norm: bool = False
    """whether BatchNorm normalizes by its running statistics and does not change them"""
    lockstep: bool = False
    """whether clients take each step together even if their forward and backward passes run one after the other: for a
    gradient rule that reads large shared constants and only calls ``StackedNetwork.gradient``"""
    may_diverge: bool = False
    """whether clients with non-finite parameters stay in the round; the method must then check for them"""
    bounds: tuple[float, float] | None = None
    """lower and upper bound to which trained parameters are clipped after every step: projected gradient descent"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "lr", np.asarray(self.lr, dtype=np.float64))

    @property
    def update(self) -> Update:
        """How gradients change weights."""
        return Update(
            self.optimizer,
            self.momentum,
            self.weight_decay,
            self.clip,
            self.clips_apart,
            self.prox,
            self.own if self.adds_own else {},
            self.bounds,
        )

    @property
    def has_rule(self) -> bool:
        """Whether a method states its loss or gradients. The start is then a stack, which may have further tensors."""
        return any(rule is not None for rule in (self.loss, self.pass_rule, self.gradient, self.objective))

    def schedule(
        self, index: int, samples: int, draw: np.random.Generator, *, join_single: bool
    ) -> Iterator[tuple[NDArray[np.int64], float]]:
        """Yield the steps of the client at ``index``: a minibatch of indices below ``samples``, and a learning rate.

        Callers exhaust it before training begins, so that a gradient rule draws after it in every mode.
        """
        steps, rates = 0, self.lr[index] if self.lr.ndim == 2 else self.lr
        for epoch in range(self.epochs) if self.steps is None else itertools.count():
            if not samples or steps == self.steps:
                return
            order = draw.permutation(samples)
            for batch in batches(order, self.batch_size, join_single=join_single, most=self.batches):
                if steps == self.steps:
                    return
                yield batch, float(rates[epoch if self.steps is None else steps])
                steps += 1

    def losses(self, trained: TrainedClients, first: int) -> list[tuple[float, float]]:
        """Return each client's mean loss and its weight, the sum of the weights of its samples.

        ``trained`` are the clients of this plan from index ``first`` on.
        """
        loss, weights = trained.loss, trained.weights
        if self.sample_weights is not None:
            own = self.sample_weights[first : first + len(loss)]  # padded with zeros
            totals = own.double().sum(dim=1).cpu().numpy()
            loss, weights = loss * weights / np.maximum(totals, np.finfo(np.float64).tiny), totals
        return list(zip(loss.tolist(), weights.tolist(), strict=True))

    def trained_samples(self, sizes: NDArray[np.int64], *, join_single: bool) -> NDArray[np.int64]:
        """Return the number of samples in all local steps of clients (m,) that have ``sizes`` (m,) samples."""
        steps = steps_per_epoch(sizes, self.batch_size, join_single=join_single)
        per_epoch = sizes
        if self.batches is not None:
            per_epoch = np.where(steps <= self.batches, sizes, np.minimum(sizes, self.batches * self.batch_size))
            steps = np.minimum(steps, self.batches)
        if self.steps is None:
            return np.asarray(self.epochs * per_epoch)
        epochs, rest = np.divmod(self.steps, np.maximum(steps, 1))
        return np.asarray(np.where(sizes > 0, epochs * per_epoch + np.minimum(rest * self.batch_size, per_epoch), 0))

    def for_clients(self, positions: NDArray[np.int64], like: Params) -> LocalSGD:
        """Return the plan of the clients at ``positions``. ``like``, one model, shows whether anchors are stacked."""
        plan = self
        if self.lr.ndim == 2:
            plan = replace(plan, lr=self.lr[positions])
        if self.own:
            plan = replace(plan, own={name: parameters.rows(value, positions) for name, value in self.own.items()})
        if self.sample_weights is not None:
            plan = replace(plan, sample_weights=parameters.rows(self.sample_weights, positions))
        if self.prox and is_stacked(self.prox[0], like):
            plan = replace(
                plan, prox=({n: parameters.rows(v, positions) for n, v in self.prox[0].items()}, self.prox[1])
            )
        return plan


def is_stacked(params: Params | Stacked, like: Params) -> bool:
    """Whether ``params`` has a leading axis over clients that ``like``, one model, does not have."""
    name = next(name for name in params if name in like)
    return params[name].ndim == like[name].ndim + 1


def learnable(net: nn.Module, params: Params, prefix: str | tuple[str, ...] = "") -> list[str]:
    """Return the names in ``params`` that begin with ``prefix`` and can be trained: floating point, not buffers."""
    buffers = tuple(name for name, _ in net.named_buffers())
    is_buffer = {name for name in params if buffers and name.endswith(buffers)}
    return [n for n, v in params.items() if n.startswith(prefix) and n not in is_buffer and v.is_floating_point()]


def batches(
    order: NDArray[np.int64], size: int, *, join_single: bool, most: int | None = None
) -> list[NDArray[np.int64]]:
    """Cut a permutation into minibatches and return the first ``most``.

    With ``join_single`` a last minibatch of one sample becomes part of the one before it.
    """
    first = list(range(0, len(order), size))
    if join_single and len(first) > 1 and len(order) - first[-1] == 1:
        first.pop()
    return [order[start:end] for start, end in itertools.pairwise([*first, len(order)])][:most]


def widths(sizes: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return the number of samples to which a stack pads the minibatches of each client (m,) with ``sizes`` samples.

    The width is a power of two or, above 64, a multiple of an eighth of a power of two, so that clients of similar size
    share a stack. It is at most the batch size ``size``, rounded up to a multiple of four, because the last bits of
    matrix products depend on the alignment of rows. It does not depend on other clients.
    """
    power = 2 ** np.ceil(np.log2(np.maximum(sizes, 4))).astype(np.int64)
    step = np.where(power > 64, power // 8, power)
    return np.asarray(np.minimum(-(-sizes // step) * step, -(-size // 4) * 4).clip(4))


def stacks(sizes: NDArray[np.int64], most: int, batch_size: int | None) -> list[NDArray[np.int64]]:
    """Cut clients, in the order of their ``sizes`` (m,), into stacks of at most ``most``; return their positions.

    With a ``batch_size``, all clients of a stack have the same width of batch, see ``widths``.
    """
    cuts: list[int] = (np.flatnonzero(np.diff(widths(sizes, batch_size))) + 1).tolist() if batch_size else []
    return [
        np.arange(first, min(first + most, last))
        for begin, last in itertools.pairwise([0, *cuts, len(sizes)])
        for first in range(begin, last, most)
    ]


def steps_per_epoch(sizes: NDArray[np.int64], size: int, *, join_single: bool) -> NDArray[np.int64]:
    """Return the number of minibatches per epoch of clients with ``sizes`` (m,) samples, see ``batches``.

    >>> import numpy as np
    >>> from pflcli.method import steps_per_epoch
    >>> steps_per_epoch(np.array([10, 25, 32]), 10, join_single=False).tolist()
    [1, 3, 4]
    """
    full, remainder = np.divmod(sizes, size)
    joined = join_single & (remainder == 1) & (full > 0)
    return np.asarray(full + (remainder > 0) - joined)
