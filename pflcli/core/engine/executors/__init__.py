"""Executors do the work of the engine: in threads of this process, in worker processes, or in Ray actors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pflcli.core import parameters, rng
from pflcli.core.engine import strategy
from pflcli.core.engine.federation import Federation
from pflcli.core.engine.local_sgd import LocalSGD, is_stacked
from pflcli.core.engine.strategy import WorkerNet
from pflcli.core.engine.trainer import Task, Worker
from pflcli.core.errors import UsageError
from pflcli.core.parameters import Params, Stacked, WeightedSum

T = TypeVar("T")


def run_task(
    task: Task, worker_net: WorkerNet, data: Federation, start: Params | Stacked, out: Stacked
) -> NDArray[np.float64]:
    """Train the task's clients into their places in ``out``, and return their mean losses (m,).

    ``start`` and ``out`` (n, ...) are those of the whole chunk. The result does not depend on the worker. It depends on
    the other clients of the task only up to rounding, because batched kernels may add in another order; in chains of
    linear layers it does not depend on them at all, because ``local_sgd.widths`` pads each client by its own samples.
    The engine forms the same tasks on every machine, so a request always gives the same bytes.
    """
    data = data if task.rows is None else data.pooled(task.rows)
    chosen = strategy.choose(worker_net, task.plan, task.mode, len(task.clients))
    try:
        if chosen.stacked:
            try:
                losses = _train_without_draws(Worker(worker_net, chosen, data), task, start, out)
            except RuntimeError as error:  # torch.func raises no other kind
                losses, reason = None, str(error)
                if not re.search("vmap|atching rule", reason):
                    raise
                if not (worker_net.is_random is None and re.search("vmap: .*random", reason)):
                    reason = reason.partition(". ")[0]
                    raise UsageError(f"this network cannot be trained in stacks: {reason}", "--engine loop") from None
            if losses is not None:
                return losses
            chosen = strategy.choose(worker_net, task.plan, task.mode, 1)
        worker = Worker(worker_net, chosen, data)
        return np.concatenate([_train_client(worker, each, start, out) for each in task.each()])
    finally:
        if worker_net.program is not None:
            worker_net.program.forget()  # the weights of these clients


def _train_client(worker: Worker, task: Task, start: Params | Stacked, out: Stacked) -> NDArray[np.float64]:
    """Train the only client of a task; random numbers of the network are drawn by client and key."""
    losses = _train_without_draws(worker, task, start, out)
    if losses is None:
        with rng.seeded_globals(task.seed, "network", *task.key, int(task.clients[0])):
            losses = worker.train(task, start, out)
    return losses


def _train_without_draws(
    worker: Worker, task: Task, start: Params | Stacked, out: Stacked
) -> NDArray[np.float64] | None:
    """Train the task's clients; return None, with ``start`` unchanged, if the network draws random numbers."""
    if (is_random := worker.net.is_random) is not None:
        return None if is_random else worker.train(task, start, out)
    has_own_start = is_stacked(start, {name: value[0] for name, value in out.items()})
    # ``out`` may be ``start``.
    kept = {name: value[task.places] for name, value in start.items()} if has_own_start else {}
    with rng.watched_globals() as has_drawn:
        losses = worker.train(task, start, out)
        if not has_drawn():
            return losses
    parameters.write_rows(start, task.places, kept)
    return None


@dataclass(frozen=True)
class Inference:
    """Samples to predict: ``rows`` (n,) of the federation, by the model at ``index`` of a stack or by the only model.

    With ``features`` the result includes the representations. ``compiled`` allows compiled loops, which take half a
    second to load: for predictions that training needs.
    """

    rows: NDArray[np.int64]
    index: int | None = None
    features: bool = False
    compiled: bool = False


class Executor(Protocol):
    """Does the work of one engine in parallel. Neither the workers nor the order of tasks change a bit of a result."""

    federation: Federation
    """the samples, as this process reads them"""

    def run(self, tasks: Sequence[Task], start: Params | Stacked, out: Stacked) -> Iterator[NDArray[np.float64]]:
        """Train the tasks of a chunk into ``out`` (m, ...), complete at the end; yield their losses in order."""

    def infer(self, tasks: Sequence[Inference], models: Params | Stacked) -> list[tuple[Tensor, Tensor]]:
        """Return the logits (n, C) and the representations (n, d), or (n, 0) without ``features``, of each task."""

    def each(self, work: Callable[[int], T], count: int) -> list[T]:
        """Return ``work(0)`` to ``work(count - 1)``."""

    def close(self) -> None:
        """End all threads and processes."""


@dataclass(frozen=True)
class SumRequest:
    """Clients (m,) that train by ``plan`` from one ``start``; ``encode`` turns models (m, ...) into their uploads."""

    clients: NDArray[np.int64]
    start: Params
    plan: LocalSGD
    key: tuple[Any, ...]
    mode: str
    encode: Callable[[Stacked], Stacked]


@dataclass(frozen=True)
class Summed:
    """The ``total`` of the uploads, weighted by samples; the clients' ``loss`` (m,); which models are ``finite`` (m,).

    ``total`` has the same bits as the sum that ``parameters.Mean`` computes of these uploads in the clients' order.
    """

    total: WeightedSum
    loss: NDArray[np.float64]
    finite: NDArray[np.bool_]


@runtime_checkable
class SummingExecutor(Protocol):
    """An executor whose workers add models up, so that this process receives one sum instead of all models."""

    def summed(self, request: SumRequest) -> Summed:
        """Train clients and return the sum of their uploads."""


def batches(rows: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """Cut rows into batches; without rows return one empty batch, so that results keep their shape."""
    return [rows[first : first + size] for first in range(0, max(len(rows), 1), size)]
