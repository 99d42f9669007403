"""An executor whose workers are threads of this process. A single worker is the calling thread."""

from __future__ import annotations

import copy
import itertools
import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pflcli.core import parameters
from pflcli.core.engine import strategy
from pflcli.core.engine.executors import Inference, T, batches, run_task
from pflcli.core.engine.federation import Federation
from pflcli.core.engine.gradients import StackedNetwork
from pflcli.core.engine.strategy import Forward, Prediction, WorkerNet
from pflcli.core.engine.trainer import Task
from pflcli.core.parameters import Params, Stacked

S = TypeVar("S")

_MODELS_PER_STACK = 8
"""Number of models with which one call of compiled loops predicts."""

_MAX_STACKED_SAMPLES = 128
"""Most samples of a client for which compiled loops predict all of them in one call, which reads the model once."""

BATCH = {"cpu": 64, "cuda": 4096}
"""Samples per batch of inference, by device. On a CPU activations fit into the cache, and threads share the batches."""


class Threads:
    """An executor of ``count`` threads, each with a network of its own. Callers set one intra-op thread."""

    def __init__(self, net: nn.Module, federation: Federation, count: int) -> None:
        self.federation = federation
        device = federation.y.device
        self._batch = BATCH[device.type]
        self._nets: queue.SimpleQueue[WorkerNet] = queue.SimpleQueue()
        for _ in range(count if device.type == "cpu" else 1):
            self._nets.put(WorkerNet.compile(copy.deepcopy(net).to(device), federation.in_shape, federation.task))
        self._pool = None
        if (workers := self._nets.qsize()) > 1:
            # Without the initializer, OpenMP chooses the number of intra-op threads of a new thread.
            self._pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))

    @contextmanager
    def net(self) -> Iterator[WorkerNet]:
        """Lend the network of one worker, for the block alone."""
        worker_net = self._nets.get()
        try:
            yield worker_net
        finally:
            self._nets.put(worker_net)

    def run(self, tasks: Sequence[Task], start: Params | Stacked, out: Stacked) -> Iterator[NDArray[np.float64]]:
        """Train the tasks of a chunk into ``out`` (m, ...), complete at the end; yield their losses in order."""

        def losses(task: Task) -> NDArray[np.float64]:
            with self.net() as worker_net, torch.enable_grad():  # the calling thread may have disabled gradients
                return run_task(task, worker_net, self.federation, start, out)

        return self._map(losses, tasks)

    def infer(self, tasks: Sequence[Inference], models: Params | Stacked) -> list[tuple[Tensor, Tensor]]:
        """Return the logits (n, C) and the representations (n, d), or (n, 0) without ``features``, of each task."""
        with self.net() as worker_net:
            chosen = strategy.choose_inference(worker_net, training=all(task.compiled for task in tasks))
            if chosen.shared and all(task.index is None for task in tasks):
                with chosen.forward(worker_net, models) as forward:
                    return list(self._map(lambda task: self._infer_batches(task, forward), tasks))
        small = all(len(task.rows) <= _MAX_STACKED_SAMPLES for task in tasks)
        if chosen.stack and small and [task.index for task in tasks] == list(range(len(tasks))):
            parts = [slice(first, first + _MODELS_PER_STACK) for first in range(0, len(tasks), _MODELS_PER_STACK)]
            outputs = self._map(partial(self._infer_stack, chosen.stack, tasks, models), parts)
            return list(itertools.chain.from_iterable(outputs))
        return list(self._map(partial(self._infer_task, chosen, models), tasks))

    def _infer_task(self, chosen: Prediction, models: Params | Stacked, task: Inference) -> tuple[Tensor, Tensor]:
        """Return the logits (n, C) and representations (n, d) of one task, computed on the calling thread."""
        own = models if task.index is None else parameters.pick(models, task.index)
        with self.net() as worker_net, chosen.forward(worker_net, own) as forward:
            return self._infer_batches(task, forward)

    def _infer_stack(
        self, chain: StackedNetwork, all_tasks: Sequence[Inference], all_models: Stacked, part: slice
    ) -> list[tuple[Tensor, Tensor]]:
        """Return the outputs of some of the tasks (t,), one for each of the models (t, ...), by compiled loops."""
        tasks, models = all_tasks[part], {name: value[part] for name, value in all_models.items()}
        sizes = [len(task.rows) for task in tasks]
        rows = np.zeros((len(tasks), max(1, *sizes)), np.int64)
        weight = torch.zeros(rows.shape)
        for index, (task, size) in enumerate(zip(tasks, sizes, strict=True)):
            rows[index, :size], weight[index, :size] = task.rows, 1
        x = self.federation.inputs(torch.from_numpy(rows.ravel())).view(*rows.shape, -1)
        outputs = chain.forward(models, x, weight)
        z = outputs.z if any(task.features for task in tasks) else outputs.z[..., :0]
        return [(outputs.logits[index, :size], z[index, :size]) for index, size in enumerate(sizes)]

    def each(self, work: Callable[[int], T], count: int) -> list[T]:
        """Return ``work(0)`` to ``work(count - 1)``."""
        return list(self._map(work, range(count)))

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()

    def _map(self, work: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
        """Return the results of all items in their order. A single worker is the calling thread.

        Passing a task to another thread and waiting for it can take as long as the task itself.
        """
        return map(work, items) if self._pool is None else self._pool.map(work, items)

    @torch.no_grad()
    def _infer_batches(self, task: Inference, forward: Forward) -> tuple[Tensor, Tensor]:
        """Return the outputs of a task, computed batch by batch.

        They are written into memory that is allocated at the beginning. Outputs allocated one by one would lie between
        the blocks that a batch frees, and the next batch could not use these blocks again.
        """
        logits = z = torch.empty(0)
        first = 0
        for rows in batches(task.rows, self._batch):
            own_logits, own_z = forward(self.federation.inputs(torch.from_numpy(rows)))
            if not first:
                logits = own_logits.new_empty(len(task.rows), *own_logits.shape[1:])
                z = own_z.new_empty(len(task.rows) if task.features else 0, *own_z.shape[1:])
            last = first + len(rows)
            logits[first:last] = own_logits
            if task.features:
                z[first:last] = own_z
            first = last
        return logits, z if task.features else logits[:, :0]
