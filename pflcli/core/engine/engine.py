"""The engine trains many clients of one partition, and computes what models predict for them.

Methods say what each client does; the engine decides how it is computed. In **loop** mode each worker trains one client
after the other, in **stacked** mode many clients as one batched program. Workers are threads of this process or, with
``jobs``, separate processes. Each computes with one intra-op thread, so neither their kind nor their number changes a
result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pflcli.core import parameters
from pflcli.core.engine import strategy
from pflcli.core.engine.executors import Executor, Inference, Summed, SummingExecutor, SumRequest, batches
from pflcli.core.engine.executors.threads import BATCH, Threads
from pflcli.core.engine.federation import Federation
from pflcli.core.engine.local_sgd import LocalSGD, is_stacked, stacks
from pflcli.core.engine.networks import has_batch_norm
from pflcli.core.engine.process_settings import intra_op, keep_freed_memory
from pflcli.core.engine.trainer import Task
from pflcli.core.errors import ComputationError, UsageError
from pflcli.core.parameters import Params, Stacked, TrainedClients
from pflcli.core.parameters.model_table import ModelTable

if TYPE_CHECKING:
    from pflcli.core.engine.executors.ray_runtime import RayCluster

MODES = ("auto", *strategy.MODES)

T = TypeVar("T")

_CHUNK_BYTES = {"cpu": 128 << 20, "cuda": 1 << 30}
"""Most bytes of parameters in one chunk of a cohort, by device. Chunks bound the memory of a round for cohorts of any
size. They do not depend on free memory, because the last bits of sums depend on them."""

_MIN_TASKS_PER_THREAD, _MAX_BATCHES_PER_TASK = 4, 64
"""Bounds of the tasks of one inference."""

_STACK_BYTES = {"cpu": 8 << 20, "cuda": 256 << 20}
"""Most bytes of parameters in one stack, by device: they fit into a CPU's last cache, their activations into a GPU."""

_MIN_STACKS = 4
"""Least number of stacks of a chunk on a CPU, so that each of several workers gets some."""


class ServerDiverged(ComputationError):
    """Training at the server ended with parameters that are not finite."""


@dataclass
class Passes:
    """Numbers of samples that went through a model; a sample counts once for each pass."""

    trained: float = 0
    """samples of local steps, each counted ``LocalSGD.passes`` times"""
    predicted: int = 0
    """samples that were predicted or embedded, by a forward pass alone"""


class Engine:
    """Trains clients of one federation on one network, and predicts their samples.

    ``threads`` threads of this process do the work. With ``jobs`` > 0, that number of processes trains clients instead;
    with ``ray``, that number of Ray actors, or as many as there is room for if it is 0. With ``apart``, one client is
    computed after the other: where several share a product, its last bits depend on who they are.
    """

    def __init__(
        self,
        net: nn.Module,
        federation: Federation,
        *,
        seed: int,
        threads: int = 1,
        mode: str = "auto",
        jobs: int = 0,
        ray: RayCluster | None = None,
        apart: bool = False,
    ) -> None:
        keep_freed_memory()
        self.parameters = tuple(name for name, _ in net.named_parameters())
        self.joins_single = has_batch_norm(net)
        self.seed, self.threads, self.jobs, self._apart = seed, threads, jobs, apart
        self._device = federation.y.device.type
        self._like = {name: value.to(federation.y.device) for name, value in parameters.copy_params(net).items()}
        self.mode = strategy.fastest_mode(net, self._device) if mode == "auto" else mode
        threaded = Threads(net, federation, threads)
        with threaded.net() as worker_net:
            self._worker_net = worker_net  # read only to choose a strategy
        self.executor: Executor = threaded
        self.warn: Callable[[str], None] = lambda warning: None
        """called with what a user should know, such as the loss of workers"""
        self.detail: Callable[[str], None] = lambda text: None
        """called with what a user may want to know, such as what workers send"""
        self.on_ray = ray is not None
        if ray is not None:
            from pflcli.core.engine.executors.ray_actors import RayActors

            self.executor = RayActors(net, threaded, jobs, ray, seed, self._warn, type(self))
            self.jobs = self.executor.count
        elif jobs:
            from pflcli.core.engine.executors.processes import Processes

            self.executor = Processes(threaded, jobs, self._warn)
        self.on_progress: Callable[[int, int], None] = lambda count, total: None
        """called with how many of how many clients of a chunk are trained"""
        self.explain: Callable[[str], None] = lambda strategy: None
        """called with how clients train, and why, whenever that changes"""
        self._explained = ""
        self.passes = Passes()
        """numbers of samples that went through models so far"""
        self._is_training = False
        self._details: set[str] = set()

    @property
    def federation(self) -> Federation:
        """The samples, in the memory of the executor."""
        return self.executor.federation

    def close(self) -> None:
        """End all threads and processes of the engine."""
        self.executor.close()

    def local_sgd(
        self,
        clients: Sequence[int] | NDArray[np.int64],
        start: Params | Stacked | ModelTable,
        plan: LocalSGD,
        key: tuple[Any, ...],
        *,
        restore: bool = False,
    ) -> Iterator[TrainedClients]:
        """Train clients from ``start`` (one model, a stack in their order, or a table) and yield them in chunks.

        ``key`` and the client are the key of the draw of minibatches. With an objective, ``start`` is a stack of the
        tensors that the objective takes. With ``restore``, clients whose parameters become non-finite get their start
        back.
        """
        ids = np.asarray(clients, dtype=np.int64)
        if not len(ids):
            return
        if isinstance(self.executor, SummingExecutor):
            self._detail_once("the model of each client comes from its worker, as the method needs it")
        like = self._model_like(start, plan)
        if plan.trainable and not any(name.startswith(plan.trainable) for name in like):
            raise UsageError(
                f"the model has no parameters under '{plan.trainable}': it does not end in a linear layer, its head",
                "a method that trains all parameters, or another --model",
            )
        chunk = self.clients_that_fit(parameters.size(like))
        for first in range(0, len(ids), chunk):
            positions = np.arange(first, min(first + chunk, len(ids)))
            chunk_ids, chunk_plan = ids[positions], plan.for_clients(positions, like)
            if isinstance(start, ModelTable):
                initial = start[chunk_ids]
            elif is_stacked(start, like):
                initial = {name: value[first : first + chunk] for name, value in start.items()}
            else:
                initial = start
            in_place = isinstance(start, ModelTable) and not restore  # a table returns copies
            out = initial if in_place else {n: v.new_empty(len(positions), *v.shape) for n, v in like.items()}
            sizes = self.federation.sizes(*plan.splits)[chunk_ids]
            self.count_training(chunk_plan, sizes)
            tasks = self._divide(chunk_ids, sizes, like, chunk_plan, key)
            losses, count = np.empty(len(chunk_ids)), 0
            with intra_op(1):
                for task, values in zip(tasks, self.executor.run(tasks, initial, out), strict=True):
                    losses[task.places] = values
                    count += len(task.places)
                    self.on_progress(count, len(chunk_ids))
            finite = parameters.finite(out)
            if restore:
                for row in np.flatnonzero(~finite):
                    for name, value in out.items():
                        value[row] = initial[name][row] if is_stacked(initial, like) else initial[name]
            yield TrainedClients(chunk_ids, out, sizes.astype(np.float64), losses, finite)

    def _divide(
        self,
        clients: NDArray[np.int64],
        sizes: NDArray[np.int64],
        like: Params,
        plan: LocalSGD,
        key: tuple[Any, ...],
    ) -> list[Task]:
        """Divide a chunk into tasks: one client each, or stacks of clients that have about as many samples.

        Clients with most samples come first, so that no worker starts with a large task at the end.
        """
        order = np.argsort(-sizes, kind="stable")
        if self.mode == "loop" and not plan.lockstep:
            groups = list(order[:, None])
        else:
            shared = parameters.size(plan.shared)
            chosen = strategy.choose(self._worker_net, plan, self.mode, len(clients))
            is_wide = chosen.independent and chosen.train is None and self._device == "cpu"  # each step calls Python
            stack_size = self.stack_size(parameters.size(like), len(clients), shared, is_wide=is_wide)
            # If reading shared constants takes longest, clients of different sizes share a stack.
            batch_size = plan.batch_size if shared <= _STACK_BYTES[self._device] else None
            groups = [order[positions] for positions in stacks(sizes[order], stack_size, batch_size)]
        self._explain_once(strategy.choose(self._worker_net, plan, self.mode, max(len(places) for places in groups)))
        return [Task(self.mode, places, clients[places], plan, self.seed, key) for places in groups]

    def summed(
        self,
        clients: NDArray[np.int64],
        start: Params | Stacked | ModelTable,
        plan: LocalSGD,
        key: tuple[Any, ...],
        encode: Callable[[Stacked], Stacked],
    ) -> Summed | None:
        """Train clients from one model and return the sum of their uploads, or None if workers cannot add them up.

        ``encode``, which must be picklable, turns models (m, ...) into uploads (m, ...). Workers do not add up models
        that train in stacks by torch.func, where a client's last bits depend on the other clients of its stack.
        """
        executor = self.executor
        if not isinstance(executor, SummingExecutor) or not len(clients):
            return None
        chosen = strategy.choose(self._worker_net, plan, self.mode, len(clients))
        own_loss = plan.has_rule or plan.own or plan.sample_weights is not None
        own_starts = isinstance(start, ModelTable) or own_loss or is_stacked(start, self._like)
        if own_starts or (chosen.stacked and not chosen.independent):
            return None
        assert not isinstance(start, ModelTable)
        self._explain_once(chosen)
        self._detail_once("one sum of models comes from all workers")
        self.count_training(plan, self.federation.sizes(*plan.splits)[clients])
        return executor.summed(SumRequest(np.asarray(clients), start, plan, key, self.mode, encode))

    def clients_that_fit(self, size: int) -> int:
        """Return the number of models, of ``size`` bytes each, that may be in memory at the same time."""
        return 1 if self._apart else max(1, _CHUNK_BYTES[self._device] // max(size, 1))

    def _model_like(self, start: Params | Stacked | ModelTable, plan: LocalSGD) -> Params:
        """Return one client's initial model, as a template of names and shapes."""
        if isinstance(start, ModelTable):
            return start.default
        if plan.has_rule or is_stacked(start, self._like):
            return {name: value[0] for name, value in start.items()}
        return start

    def train_at_server(self, rows: NDArray[np.int64], start: Params, plan: LocalSGD, key: tuple[Any, ...]) -> Params:
        """Train one model from ``start`` on these rows of the federation, as a client with these samples would.

        ``key`` is the key of the draw of minibatches. Raises ServerDiverged if parameters become non-finite.
        """
        out = {name: torch.empty_like(value)[None] for name, value in start.items()}
        self.count_training(plan, np.asarray([len(rows)]))
        task = Task(self.mode, np.zeros(1, np.int64), np.zeros(1, np.int64), plan, self.seed, key, rows)
        with intra_op(1):
            list(self.executor.run([task], start, out))
        if not parameters.finite(out).all():
            raise ServerDiverged(
                f"the server's parameters became non-finite ({' '.join(map(str, key))})", "a smaller --lr may help"
            )
        return parameters.pick(out, 0)

    def count_training(self, plan: LocalSGD, sizes: NDArray[np.int64]) -> None:
        """Count the passes of clients (m,) that train by ``plan`` on ``sizes`` (m,) samples."""
        self.passes.trained += plan.passes * int(plan.trained_samples(sizes, join_single=self.joins_single).sum())

    def _detail_once(self, text: str) -> None:
        if text not in self._details:
            self._details.add(text)
            self.detail(text)

    def _explain_once(self, chosen: strategy.Strategy) -> None:
        if str(chosen) != self._explained:
            self._explained = str(chosen)
            self.explain(self._explained)

    def _warn(self, warning: str) -> None:
        self.warn(warning)

    def stack_size(self, size: int, clients: int, shared: int = 0, *, is_wide: bool = False) -> int:
        """Return the number of clients in one stack, by the bytes of a model and of the constants that clients share.

        It does not depend on the number of workers, because sums of another stack may differ in their last bits. There
        are half as many stacks if shared constants, which each step reads once, are large, and if stacks are wide.
        """
        most, usual = (1 + is_wide) * _STACK_BYTES[self._device], _MIN_STACKS if self._device == "cpu" else 1
        fewest = max(1, usual // (1 + is_wide) // (1 + (shared > most)))
        return max(1, min(max(most, shared) // max(size, 1), -(-clients // fewest)))

    @contextmanager
    def training(self) -> Iterator[None]:
        """Compute a round within the block: by one intra-op thread, whatever a method computes outside of the engine.

        Predictions use the compiled loops of training, which may round otherwise. Those take half a second to load,
        which predictions alone would not regain.
        """
        before, self._is_training = self._is_training, True
        try:
            with intra_op(1):
                yield
        finally:
            self._is_training = before

    def infer(self, params: Params, rows: NDArray[np.int64], *, features: bool = False) -> tuple[Tensor, Tensor]:
        """Return one model's logits (n, C) on rows and, with ``features``, representations (n, d): ``Inference``."""
        batch = BATCH[self._device]
        per_task = max(1, min(_MAX_BATCHES_PER_TASK, len(rows) // (_MIN_TASKS_PER_THREAD * self.threads * batch)))
        parts = self.divide(rows, per_task * batch)
        tasks = [Inference(part, features=features, compiled=self._is_training) for part in parts]
        logits, z = zip(*self._infer(tasks, params), strict=True)
        return torch.cat(logits), torch.cat(z)

    def divide(self, rows: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
        """Cut rows into parts of at most ``size`` that are predicted together, of one client each if it is apart."""
        owners = np.searchsorted(self.federation.offsets, rows, side="right") if self._apart else rows[:0]
        return [part for own in np.split(rows, np.flatnonzero(np.diff(owners)) + 1) for part in batches(own, size)]

    def _infer(self, tasks: Sequence[Inference], models: Params | Stacked) -> list[tuple[Tensor, Tensor]]:
        self.passes.predicted += sum(len(task.rows) for task in tasks)
        chosen = strategy.choose_inference(self._worker_net, training=self._is_training)
        self._detail_once(f"models predict by {chosen}")
        with intra_op(1):
            return self.executor.infer(tasks, models)

    def each(self, work: Callable[[int], T], count: int) -> list[T]:
        """Return ``work(0)`` to ``work(count - 1)``, computed in parallel, each with one intra-op thread."""
        with intra_op(1):
            return self.executor.each(work, count)

    def infer_each(self, clients: NDArray[np.int64], models: Stacked, split: str) -> NDArray[np.float32]:
        """Return the predictions (n, C) of the clients' samples of a split, by each client's own model (m, ...)."""
        predict = self.federation.task.predict
        return np.concatenate([predict(logits) for logits, _ in self.outputs_each(clients, models, split)])

    def represent(self, clients: NDArray[np.int64], models: Stacked, split: str) -> Tensor:
        """Return the mean representation (m, d) of each client's samples of a split, by its own model (m, ...).

        A client without such samples gets zeros.
        """
        embedded = self.outputs_each(clients, models, split, features=True)
        return torch.stack([(z.double().sum(dim=0) / max(len(z), 1)).float() for _, z in embedded])

    def outputs_each(
        self, clients: NDArray[np.int64], models: Stacked, split: str, *, features: bool = False
    ) -> list[tuple[Tensor, Tensor]]:
        """Return logits (n, C) and, with ``features``, representations (n, d) for each client: ``Inference``."""
        if self._apart and len(clients) > 1:
            each = [{name: value[place : place + 1] for name, value in models.items()} for place in range(len(clients))]
            pairs = zip(clients[:, None], each, strict=True)
            return [self.outputs_each(client, own, split, features=features)[0] for client, own in pairs]
        rows = [self.federation.rows(int(client), split) for client in clients]
        tasks = [Inference(own, index, features, self._is_training) for index, own in enumerate(rows)]
        return self._infer(tasks, models)
