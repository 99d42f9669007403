"""An executor that computes a few steps of each kind of task, and takes the time of all others from them.

The rest of a rehearsal, a method's own arithmetic, runs as it is. What tasks return has the right shapes, but is made
up: models that moved a little, logits at random.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.engine import strategy
from pflcli.engine.executors import Inference, T
from pflcli.engine.executors.threads import Threads
from pflcli.engine.federation import Federation
from pflcli.engine.local_sgd import LocalSGD, is_stacked, steps_per_epoch
from pflcli.engine.loop import has_batch_norm
from pflcli.engine.task import Task, run_task
from pflcli.parameters import Params, Stacked

_FEW, _MORE = 1, 4
"""Steps of the two measurements of a task; their difference is the time of a step."""
_ROWS = (1, 64)
"""Samples of the two measurements of a prediction; 64 fit into a batch on a CPU."""
_MOVED = 1e-3
"""How far made-up models lie from their start, relative to it."""


def clock() -> float:
    """Return the processor seconds of this thread, or if models are on a GPU the seconds once it has finished."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.thread_time()


@dataclass
class Rates:
    """Measured seconds, by kind of task: a fixed part, and that of a step of training or of a predicted sample.

    Rates are shared by the rehearsals of all methods. Once ``budget`` seconds are spent on measuring, a kind of task
    that was not measured takes the rate of the one that is most like it.
    """

    budget: float = 6.0
    spent: float = 0.0
    measured: dict[tuple[Any, ...], tuple[float, float]] = field(default_factory=dict)

    def get(self, kind: tuple[Any, ...], measure: Callable[[], tuple[float, float]]) -> tuple[float, float]:
        """Return the fixed and the variable seconds of a ``kind``; those of a like kind if time is up."""
        if kind not in self.measured:
            like = max(self.measured, key=lambda other: _alike(kind, other), default=None)
            if self.spent > self.budget and like is not None and like[0] == kind[0]:
                return self.measured[like]
            began = clock()
            self.measured[kind] = measure()
            self.spent += clock() - began
        return self.measured[kind]


def _alike(kind: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[bool, int]:
    return kind[0] == other[0], sum(one == two for one, two in zip(kind, other, strict=False))


class SampledExecutor:
    """Estimates the processor ``seconds`` of tasks that it computes only in part; ``spent`` is its own time."""

    def __init__(self, threads: Threads, rates: Rates) -> None:
        self.federation: Federation = threads.federation
        self.seconds = 0.0
        self.spent = 0.0
        self._threads, self._rates = threads, rates
        self._dimension = 0

    def run(self, tasks: Sequence[Task], start: Params | Stacked, out: Stacked) -> Iterator[NDArray[np.float64]]:
        """Fill ``out`` with models near ``start``; yield losses of one."""
        began = clock()
        like = {name: value[0] for name, value in out.items()}
        stacked = is_stacked(start, like)
        for task in tasks:
            self.seconds += self._training(task, start, out)
        for name, value in out.items():
            initial = start[name] if stacked else start[name].expand(value.shape)
            if value.is_floating_point():
                factors = 1 + _MOVED * torch.arange(1, len(value) + 1, dtype=value.dtype, device=value.device)
                torch.mul(initial, factors.view(-1, *[1] * (value.ndim - 1)), out=value)
            else:
                value.copy_(initial)
        self.spent += clock() - began
        return iter([np.ones(len(task.clients)) for task in tasks])

    def _training(self, task: Task, start: Params | Stacked, out: Stacked) -> float:
        """Return the seconds of one task, from the rate of its kind."""
        with self._threads.net() as nets:
            resident, plan = nets[task.mode], task.plan
            sizes = self.federation.sizes(*plan.splits)[task.clients]
            if task.rows is not None:
                sizes = np.asarray([len(task.rows)])
            steps = _steps(plan, sizes, join_single=has_batch_norm(resident.net))
            if not steps.any():
                return 0.0
            how = strategy.choose(resident, plan, task.mode, len(task.clients))
            width = 2 ** int(np.ceil(np.log2(max(1, min(int(sizes.max()), plan.batch_size)))))
            kind = (
                how.name,
                len(task.clients) if how.stacked else 1,
                width,
                *_kind(plan),
                *((name, value.shape[1:]) for name, value in out.items()),
            )

            # Of clients that train one after the other one is enough.
            measured = task if how.stacked else replace(task, places=task.places[:1], clients=task.clients[:1])

            def measure() -> tuple[float, float]:
                def timed(count: int) -> float:
                    began = clock()
                    run_task(replace(measured, plan=_shortened(plan, count)), resident, self.federation, start, out)
                    return clock() - began

                timed(_FEW)
                few, more = timed(_FEW), timed(_MORE)
                step = max(more - few, 0.0) / (_MORE - _FEW)
                return max(few - _FEW * step, 0.0), step

            fixed, step = self._rates.get(kind, measure)
        # In a stack the clients that have taken all their steps leave it: a step costs less, but not in proportion.
        effective = (steps.max() + steps.mean()) / 2 if how.stacked else steps.sum()
        return fixed * (1 if how.stacked else len(task.clients)) + step * float(effective)

    def infer(self, tasks: Sequence[Inference], models: Params | Stacked) -> list[tuple[Tensor, Tensor]]:
        """Return logits (n, C), and representations (n, d) where they are wanted, at random."""
        began = clock()
        outputs = []
        for number, task in enumerate(tasks):
            if not len(task.rows):
                outputs.append(self._forward(task, models, task.rows))
                continue

            def measure(task: Inference = task) -> tuple[float, float]:
                def timed(count: int) -> float:
                    began = clock()
                    self._forward(task, models, np.resize(task.rows, count))
                    return clock() - began

                timed(_ROWS[1])
                few, more = timed(_ROWS[0]), timed(_ROWS[1])
                sample = max(more - few, 0.0) / (_ROWS[1] - _ROWS[0])
                return max(few - sample, 0.0), sample

            fixed, sample = self._rates.get(("predict", task.index is None, task.features), measure)
            # A model that all tasks share is loaded once.
            self.seconds += (fixed if task.index is not None or not number else 0.0) + sample * len(task.rows)
            outputs.append(self._random(task, models))
        self.spent += clock() - began
        return outputs

    def _forward(self, task: Inference, models: Params | Stacked, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        logits, z = self._threads.outputs(replace(task, rows=rows), models)
        self._dimension = max(self._dimension, z.shape[1])
        return logits, z

    def _random(self, task: Inference, models: Params | Stacked) -> tuple[Tensor, Tensor]:
        device = self.federation.y.device
        if task.features and not self._dimension:
            self._forward(task, models, task.rows[:1])
        draw = torch.Generator(device).manual_seed(len(task.rows))
        sizes = self.federation.classes, self._dimension if task.features else 0
        logits, z = (torch.randn(len(task.rows), size, generator=draw, device=device) for size in sizes)
        return logits, z

    def each(self, work: Callable[[int], T], count: int) -> list[T]:
        """Return ``work(0)`` to ``work(count - 1)``."""
        began = clock()
        results = [work(index) for index in range(count)]
        seconds = clock() - began
        self.seconds, self.spent = self.seconds + seconds, self.spent + seconds
        return results

    def close(self) -> None:
        """End the thread."""
        self._threads.close()


def _kind(plan: LocalSGD) -> tuple[Any, ...]:
    """Return what of a plan decides how long a step takes."""
    function = plan.objective or plan.gradient
    objective = getattr(function, "func", function)
    return (
        getattr(objective, "__module__", ""),
        getattr(objective, "__qualname__", ""),
        plan.sample_weights is not None,
        plan.trainable,
        plan.optimizer,
        plan.precision,
        plan.prox is not None,
        plan.adds_own,
        plan.momentum > 0,
        plan.frozen_norm,
        plan.bounds is not None,
    )


def _steps(plan: LocalSGD, sizes: NDArray[np.int64], *, join_single: bool) -> NDArray[np.int64]:
    """Return how many steps clients (m,) with these numbers of samples take."""
    steps = steps_per_epoch(sizes, plan.batch_size, join_single=join_single)
    if plan.batches is not None:
        steps = np.minimum(steps, plan.batches)
    return np.where(steps > 0, plan.steps, 0) if plan.steps is not None else steps * plan.epochs


def _shortened(plan: LocalSGD, steps: int) -> LocalSGD:
    """Return a plan of so many steps, at the first learning rate."""
    return replace(plan, steps=steps, lr=np.repeat(plan.lr[..., :1], steps, axis=-1))
