"""Executors do the work of the engine: in threads of this process, in worker processes, or in Ray actors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pflcli import parameters, rng
from pflcli.engine import backend, loop, stacked, strategy
from pflcli.engine.federation import Federation
from pflcli.engine.local_sgd import LocalSGD, is_stacked
from pflcli.engine.strategy import WorkerNet
from pflcli.errors import UsageError
from pflcli.parameters import Params, Stacked, WeightedSum

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Task:
    """Clients that one worker trains; their models are at ``places`` (m,) of a chunk, whose plan is ``plan``."""

    mode: str
    places: NDArray[np.int64]
    clients: NDArray[np.int64]
    plan: LocalSGD
    seed: int
    key: tuple[Any, ...]
    rows: NDArray[np.int64] | None = None
    """rows of the federation on which the only client trains, instead of its own samples"""


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
    like = {name: value[0] for name, value in out.items()}
    draws = [rng.generator(task.seed, *task.key, int(client)) for client in task.clients]
    chosen = strategy.choose(worker_net, task.plan, task.mode, len(task.clients))
    if chosen.in_place:
        steps = backend.part("steps")
        losses = steps.train(chosen.layers, data, task.clients, draws, task.places, start, out, task.plan)
        return np.asarray(losses)
    try:
        if chosen.stacked:
            net, plan = worker_net.net, task.plan
            try:
                return stacked.train_stack(net, data, task.clients, draws, task.places, start, out, plan, chosen)
            except RuntimeError as error:  # torch.func raises no other kind
                if not re.search("vmap|atching rule", str(error)):
                    raise
                reason = str(error).partition(". ")[0]
                raise UsageError(f"this network cannot be trained in stacks: {reason}", "--engine loop") from None
        losses, has_own_start = np.empty(len(task.clients)), is_stacked(start, like)
        for index, (place, client) in enumerate(zip(task.places.tolist(), task.clients, strict=True)):
            own_start = parameters.pick(start, place) if has_own_start else start
            own_out, plan = parameters.pick(out, place), task.plan.for_client(place, like)
            key = (*task.key, int(client))
            image_draw = rng.generator(task.seed, "augment", *key) if plan.augment else None
            with rng.seeded_torch(task.seed, "network", *key) if worker_net.is_random else nullcontext():
                losses[index] = loop.train_client(
                    worker_net.net,
                    data,
                    int(client),
                    own_start,
                    own_out,
                    plan,
                    draws[index],
                    chosen.program,
                    image_draw,
                )
        return losses
    finally:
        if worker_net.program is not None:
            worker_net.program.forget()  # the weights of these clients


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
