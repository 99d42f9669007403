"""Executors do the work of the engine: in threads of this process, in worker processes, or in actors of Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pflcli.engine.federation import Federation
from pflcli.engine.local_sgd import LocalSGD
from pflcli.engine.task import Task
from pflcli.parameters import Params, Stacked, WeightedSum

T = TypeVar("T")


@dataclass(frozen=True)
class Inference:
    """Samples to predict: ``rows`` (n,) of the federation, by the model at ``index`` of a stack, or by the only model.

    With ``features`` the result includes the representations. ``compiled`` is for predictions that training needs: by
    loops that take half a second to load, where these are faster.
    """

    rows: NDArray[np.int64]
    index: int | None = None
    features: bool = False
    compiled: bool = False


class Executor(Protocol):
    """Does the work of one engine in parallel. Neither workers nor the order of tasks change a bit of the results."""

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
    """Clients (m,) that train from one ``start``, and how; ``encode`` makes of models (m, ...) what they upload."""

    clients: NDArray[np.int64]
    start: Params
    plan: LocalSGD
    key: tuple[Any, ...]
    mode: str
    encode: Callable[[Stacked], Stacked]


@dataclass(frozen=True)
class Summed:
    """The ``total`` of what clients upload, weighted by samples; their ``loss`` (m,); which models are ``finite`` (m,).

    ``total`` is what ``parameters.Mean`` sums of the same uploads in the clients' order, to the bit.
    """

    total: WeightedSum
    loss: NDArray[np.float64]
    finite: NDArray[np.bool_]


@runtime_checkable
class SummingExecutor(Protocol):
    """An executor whose workers add models up, so that one sum comes to this process instead of all models."""

    def summed(self, request: SumRequest) -> Summed:
        """Train clients, and return the sum of what they upload."""


def batches(rows: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    """Cut rows into batches; without rows return one empty batch, so that results keep their shape."""
    return [rows[first : first + size] for first in range(0, max(len(rows), 1), size)]
