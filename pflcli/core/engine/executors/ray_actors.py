"""An executor whose workers are Ray actors, on this machine or on many.

The clients' samples are in Ray's object store, in shards of clients. An actor fetches the shards of the clients that it
trains. If a method only needs a mean, the actors add models up along the binary tree of ``parameters.Mean``, and this
process receives one sum. If an actor is lost, the others repeat its work, with the same bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pflcli.core import parameters, sources
from pflcli.core.datasets import SPLITS
from pflcli.core.engine.executors import Inference, Summed, SumRequest
from pflcli.core.engine.executors.ray_runtime import RayCluster, connect, require_room
from pflcli.core.engine.executors.threads import Threads
from pflcli.core.engine.local_sgd import is_stacked
from pflcli.core.engine.trainer import Task
from pflcli.core.errors import LostWorkerError, PflError
from pflcli.core.parameters import Params, Stacked, WeightedSum

if TYPE_CHECKING:
    from pflcli.core.engine.executors.ray_worker import WorkerEngine

T = TypeVar("T")

_SHARDS_PER_WORKER, _UNITS_PER_WORKER = 4, 8
"""Numbers of shards of samples, and of units of clients that one call of an actor trains and adds up."""

_START_SECONDS = 120.0
"""Seconds within which the first actor must have started."""


@dataclass(frozen=True)
class _Job:
    """A call of an actor's ``method``, preferably by the worker ``home``; ``node`` identifies its result.

    The node of a sum is (level, index) in the tree; the node of trained models is (0, index of the task).
    """

    method: str
    args: tuple[Any, ...]
    node: tuple[int, int]
    home: int


@dataclass(frozen=True, eq=False)
class _Worker:
    index: int
    actor: Any
    node: str


class RayActors:
    """An executor of ``jobs`` Ray actors, or of as many as the cluster has room for with 0."""

    def __init__(
        self,
        net: nn.Module,
        threads: Threads,
        jobs: int,
        cluster: RayCluster,
        seed: int,
        warn: Callable[[str], None],
        engine: Callable[..., WorkerEngine],
    ) -> None:
        self.federation, self._threads, self._warn = threads.federation, threads, warn
        self.received_bytes = 0
        """bytes of models and of sums of models that this process received"""
        data = self.federation
        size = data.x.numel() * data.x.element_size()
        cpus = jobs or torch.get_num_threads()
        self._ray = connect(cluster, cpus, size + cpus * parameters.size(parameters.copy_params(net)))
        places = require_room(self._ray, max(jobs, 1), 1, cluster.gpus_per_worker)
        self._lost_nodes: set[str] = set()
        self._workers = self._start(net, jobs or places, cluster.gpus_per_worker, seed, engine)
        self.count = len(self._workers)
        """number of actors at the beginning"""

    def _start(
        self, net: nn.Module, count: int, gpus: float, seed: int, engine: Callable[..., WorkerEngine]
    ) -> list[_Worker]:
        """Put the samples into the object store, start the actors, and wait until they are ready."""
        from pflcli.core.engine.executors.ray_worker import Samples, Worker

        ray, data = self._ray, self.federation
        per_shard = max(1, -(-len(data.y) // (_SHARDS_PER_WORKER * count)))
        first = np.flatnonzero(
            np.diff(data.offsets[: -1 : len(SPLITS)] // per_shard, prepend=-1)
        )  # client of each shard
        rows = [*data.offsets[len(SPLITS) * first].tolist(), len(data.y)]
        shards = [
            ray.put((data.x[begin:end].cpu().contiguous().numpy(), data.y[begin:end].cpu().numpy()))
            for begin, end in itertools.pairwise(rows)
        ]
        light = replace(data, x=data.x[:0].cpu(), y=data.y[:0].cpu())
        setup = ray.put(Samples(light, first, shards))
        kind = ray.remote(num_cpus=1, num_gpus=gpus, scheduling_strategy="SPREAD")(Worker)
        files, reference = sources.read_used_files(), [ray.put(net)]
        actors = [kind.remote(files, reference, setup, seed, gpus, engine) for _ in range(count)]
        ready, _ = ray.wait(
            nodes := [actor.node.remote() for actor in actors], num_returns=count, timeout=_START_SECONDS
        )
        if len(ready) < count:
            raise LostWorkerError(
                f"only {len(ready)} of {count} Ray workers started in {_START_SECONDS:.0f} s",
                "ray status says what is free; fewer --jobs",
            )
        return [_Worker(i, actor, node) for i, (actor, node) in enumerate(zip(actors, ray.get(nodes), strict=True))]

    def run(self, tasks: Sequence[Task], start: Params | Stacked, out: Stacked) -> Iterator[NDArray[np.float64]]:
        """Train the tasks of a chunk into ``out`` (m, ...), complete at the end; yield their losses in order."""
        if any(task.rows is not None for task in tasks):  # training at the server, on samples of many clients
            yield from self._threads.run(tasks, start, out)
            return
        plan, like = tasks[0].plan, {name: value[0] for name, value in out.items()}
        stacked = is_stacked(start, like)
        anchor = plan.prox[0] if plan.prox and not is_stacked(plan.prox[0], like) else {}
        common = self._ray.put({"start": {} if stacked else start, "shared": plan.shared, "anchor": anchor})
        queue = []
        for index, task in enumerate(tasks):
            own = plan.for_clients(task.places, like)
            own = replace(own, shared={}, prox=({} if anchor else own.prox[0], own.prox[1]) if own.prox else None)
            initial = {name: value[task.places] for name, value in start.items()} if stacked else None
            queue.append(
                _Job("trained", ([common], replace(task, plan=own), initial), (0, index), self._home(task.clients))
            )
        losses: dict[int, NDArray[np.float64]] = {}
        yielded = 0
        for job, _, answer, models in self._results(queue):
            index = job.node[1]
            trained = None if answer is None else self._fetch(models)
            if trained is None:
                queue.append(job)
                continue
            losses[index] = answer
            for name, value in trained.items():
                out[name][tasks[index].places] = value
            while yielded in losses:
                yield losses[yielded]
                yielded += 1

    def summed(self, request: SumRequest) -> Summed:
        """Train the clients of a request on actors and return the sum of their uploads."""
        count = len(request.clients)
        size = 1 << max(1, count // (_UNITS_PER_WORKER * len(self._workers))).bit_length() - 1
        common = self._ray.put(request)

        def unit(index: int) -> _Job:
            clients = request.clients[index * size : (index + 1) * size]
            return _Job(
                "summed", ([common], index * size, index * size + len(clients)), (0, index), self._home(clients)
            )

        units = -(-count // size)  # the leaves of the tree
        depth = (units - 1).bit_length()
        queue, answers = [unit(index) for index in range(units)], dict[int, Any]()
        sums: dict[tuple[int, int], tuple[_Worker, Any]] = {}
        while True:
            for job, worker, answer, total in self._results(queue):
                level, index = job.node
                if level == 0 and answer is not None:
                    answers[index] = answer
                if answer is None:  # an input of this sum was lost with its worker
                    queue += [unit(u) for u in _units(job.node, units)]
                else:
                    sums[job.node] = worker, total
                for node in [node for node, (maker, _) in sums.items() if maker not in self._workers]:
                    del sums[node]
                    queue += [unit(u) for u in _units(node, units)]
                self._merge_up(sums, job.node, units, queue)
            worker, total = sums.pop((depth, 0))
            total = self._fetch(total)
            if total is not None:
                losses, finite = zip(*(answers[index] for index in range(units)), strict=True)
                return Summed(total, np.concatenate(losses), np.concatenate(finite))
            queue += [unit(index) for index in range(units)]

    def infer(self, tasks: Sequence[Inference], models: Params | Stacked) -> list[tuple[Tensor, Tensor]]:
        """Return the logits (n, C) and the representations (n, d), or (n, 0) without ``features``, of each task."""
        return self._threads.infer(tasks, models)

    def each(self, work: Callable[[int], T], count: int) -> list[T]:
        """Return ``work(0)`` to ``work(count - 1)``."""
        return self._threads.each(work, count)

    def close(self) -> None:
        """End the actors and the threads. The connection to Ray stays open until this process ends."""
        self._threads.close()
        if self._ray.is_initialized():
            for worker in self._workers:
                self._ray.kill(worker.actor)
        self._workers = []

    def _home(self, clients: NDArray[np.int64]) -> int:
        """Return the index of the worker whose share of the samples contains the first of these clients."""
        return int(self.federation.offsets[len(SPLITS) * clients[0]] * self.count // max(len(self.federation.y), 1))

    def _merge_up(
        self, sums: dict[tuple[int, int], tuple[_Worker, Any]], node: tuple[int, int], units: int, queue: list[_Job]
    ) -> None:
        """Queue the merge of a new sum with its sibling, if that is known, by the worker of the left one."""
        while node in sums and (level := node[0]) < (units - 1).bit_length():
            parent, sibling = (level + 1, node[1] // 2), (level, node[1] ^ 1)
            if sibling[1] << level >= units:  # there is no sibling
                sums[parent] = sums.pop(node)
                node = parent
                continue
            if sibling in sums:
                (worker, left), (_, right) = (sums.pop(side) for side in sorted((node, sibling)))
                queue.insert(0, _Job("merged", (left, right), parent, worker.index))
            return

    def _results(self, queue: list[_Job]) -> Iterator[tuple[_Job, _Worker, Any, Any]]:
        """Run the jobs of ``queue``, to which the caller may add, and yield each one when it has finished.

        Yield the job, its worker, its answer, and a reference to its tensors. The answer is None if an input of the job
        was lost. Jobs of a lost worker return to the queue.
        """
        busy: dict[Any, tuple[_Job, _Worker, Any]] = {}
        errors = self._ray.exceptions
        while queue or busy:
            working = {worker.index for _, worker, _ in busy.values()}
            for worker in [worker for worker in self._workers if worker.index not in working]:
                if queue:
                    own = next((job for job in queue if job.home == worker.index), queue[-1])
                    queue.remove(own)
                    answer, tensors = getattr(worker.actor, own.method).options(num_returns=2).remote(*own.args)
                    busy[answer] = own, worker, tensors
            (answer,), _ = self._ray.wait(list(busy), num_returns=1)
            job, worker, tensors = busy.pop(answer)
            try:
                yield job, worker, self._ray.get(answer), tensors
            except errors.RayTaskError as error:
                if isinstance(error.cause, PflError):
                    raise error.cause from None
                if not isinstance(error.cause, errors.RayError):
                    raise RuntimeError(f"in a Ray worker: {error.cause!r}") from None
                yield job, worker, None, None
            except errors.ObjectLostError:
                yield job, worker, None, None
            except errors.RayError:
                self._lose(worker)
                queue.append(job)

    def _fetch(self, ref: Any) -> Any:
        """Return the object of a reference and count its bytes, or return None if it was lost."""
        try:
            value = self._ray.get(ref)
        except self._ray.exceptions.RayError:
            return None
        if isinstance(value, WeightedSum):
            self.received_bytes += parameters.size(value.params)
            return value
        models = {name: torch.tensor(array) for name, array in value.items()}
        self.received_bytes += parameters.size(models)
        return models

    def _lose(self, worker: _Worker) -> None:
        """Continue without a worker. Raises LostWorkerError if none is left."""
        self._workers.remove(worker)
        if not self._workers:
            raise LostWorkerError("the last Ray worker was lost", "run the same command again to resume")
        if worker.node not in self._lost_nodes:
            self._lost_nodes.add(worker.node)
            self._warn(f"Ray lost workers on node {worker.node}; the others do their work")


def _units(node: tuple[int, int], units: int) -> range:
    """Return the units below a node (level, index) of the tree."""
    level, index = node
    return range(index << level, min((index + 1) << level, units))
