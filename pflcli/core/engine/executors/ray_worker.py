"""The Ray actor: it trains clients on samples from the object store, and adds models up."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.core import parameters
from pflcli.core.datasets import SPLITS
from pflcli.core.engine.executors import Executor, SumRequest, run_task
from pflcli.core.engine.executors.threads import Threads
from pflcli.core.engine.federation import Federation
from pflcli.core.engine.local_sgd import LocalSGD
from pflcli.core.engine.trainer import Task
from pflcli.core.parameters import Params, Stacked, TrainedClients, WeightedSum
from pflcli.core.registry.sent_files import SentFile, use_sent_files


class WorkerEngine(Protocol):
    """What a worker needs of an engine, which is handed to it, as engines start workers."""

    executor: Executor
    mode: str

    def local_sgd(
        self, clients: NDArray[np.int64], start: Params, plan: LocalSGD, key: tuple[Any, ...]
    ) -> Iterator[TrainedClients]:
        """Train clients from ``start``."""


@dataclass(frozen=True)
class Samples:
    """The federation without samples. Those of clients ``first[i]`` to ``first[i + 1]`` - 1 are in ``shards[i]``."""

    federation: Federation
    first: NDArray[np.int64]
    shards: list[Any]


class Worker:
    """An actor with an engine of its own, which has one thread, on a CPU or on a GPU."""

    def __init__(
        self,
        files: list[SentFile],
        net: list[Any],
        samples: Samples,
        seed: int,
        gpus: float,
        engine: Callable[..., WorkerEngine],
    ) -> None:
        """Begin with the users' ``files``: the network, given as a reference in a list, may be defined in one."""
        use_sent_files(files)
        torch.set_num_threads(1)
        self._device = torch.device("cuda" if gpus else "cpu")
        self._samples = samples
        self._engine = engine(ray.get(net[0]), _move_federation(samples.federation, self._device), seed=seed, threads=1)
        self._arrays: dict[int, tuple[NDArray[Any], NDArray[np.int64]]] = {}
        self._latest: tuple[Any, Any] = (None, None)

    def node(self) -> str:
        """Return the id of the node on which this actor runs."""
        return str(ray.get_runtime_context().get_node_id())

    def process(self) -> int:
        """Return the id of this actor's process."""
        return os.getpid()

    def summed(self, request: list[Any], first: int, last: int) -> tuple[Any, Any]:
        """Train clients ``first`` to ``last`` of a request; return their losses and ``finite`` (m,), and the sum."""
        common: SumRequest = self._fetch(request[0])
        plan = common.plan.for_clients(np.arange(first, last), common.start)
        clients = common.clients[first:last]
        self._take_samples(clients, plan.splits)
        self._engine.mode = common.mode
        total, losses, finite = parameters.Mean(), [], []
        for part in self._engine.local_sgd(clients, common.start, plan, common.key):
            total.add(common.encode(part.params), part.weights)
            losses.append(part.loss)
            finite.append(part.finite)
        return (np.concatenate(losses), np.concatenate(finite)), total.total()

    def merged(self, left: WeightedSum, right: WeightedSum) -> tuple[Any, WeightedSum]:
        """Return True and the sum of two sums."""
        return True, left.plus(right)

    def trained(self, request: list[Any], task: Task, start: Params | Stacked | None) -> tuple[Any, Any]:
        """Train the clients of one task; return their losses (m,) and their models (m, ...).

        The request contains the start and the parts of the plan that all tasks share; ``start`` and the plan of the
        task contain the rest.
        """
        common = self._fetch(request[0])
        plan = replace(task.plan, shared=common["shared"])
        if plan.prox:
            plan = replace(plan, prox=(plan.prox[0] or common["anchor"], plan.prox[1]))
        if start is None:
            initial, like = common["start"], common["start"]
        else:
            initial = _move(start, self._device)
            like = parameters.pick(initial, 0)
        self._take_samples(task.clients, plan.splits)
        out = {n: torch.empty((len(task.clients), *v.shape), dtype=v.dtype, device=v.device) for n, v in like.items()}
        task = replace(task, places=np.arange(len(task.clients)), plan=_move_plan(plan, self._device))
        executor = self._engine.executor
        assert isinstance(executor, Threads)
        with executor.net() as worker_net:
            losses = run_task(task, worker_net, executor.federation, initial, out)
        return losses, {name: value.cpu().numpy() for name, value in out.items()}

    def _fetch(self, ref: Any) -> Any:
        """Return what the tasks of a training share, which is fetched only once."""
        if self._latest[0] != ref:
            common = ray.get(ref)
            if isinstance(common, SumRequest):
                plan = _move_plan(common.plan, self._device)
                common = replace(common, start=_move(common.start, self._device), plan=plan)
            else:
                common = {name: _move(value, self._device) for name, value in common.items()}
            self._latest = ref, common
        return self._latest[1]

    def _take_samples(self, clients: NDArray[np.int64], splits: tuple[str, ...]) -> None:
        """Give the engine a federation in which only these clients have samples, and only of these splits."""
        light, executor = self._samples.federation, self._engine.executor
        sizes = np.zeros((len(light.clients), len(SPLITS)), dtype=np.int64)
        x, y = [], []
        for client in np.unique(clients).tolist():
            shard = int(np.searchsorted(self._samples.first, client, side="right")) - 1
            if shard not in self._arrays:
                self._arrays[shard] = ray.get(self._samples.shards[shard])
            own_x, own_y = self._arrays[shard]
            before = light.offsets[len(SPLITS) * self._samples.first[shard]]
            for split in SPLITS:
                if split in splits:
                    block = light.block(client, split)
                    rows = slice(block.start - before, block.stop - before)
                    sizes[client, SPLITS.index(split)] = block.stop - block.start
                    x.append(own_x[rows])
                    y.append(own_y[rows])
        executor.federation = replace(
            _move_federation(light, self._device),
            x=torch.from_numpy(np.concatenate(x)).to(self._device),
            y=torch.from_numpy(np.concatenate(y)).to(self._device),
            offsets=np.concatenate([[0], np.cumsum(sizes)]),
        )


def _move(tensors: Any, device: torch.device) -> dict[str, Tensor]:
    return {name: value.to(device) for name, value in tensors.items()}


def _move_plan(plan: LocalSGD, device: torch.device) -> LocalSGD:
    prox = (_move(plan.prox[0], device), plan.prox[1]) if plan.prox else None
    weights = None if plan.sample_weights is None else plan.sample_weights.to(device)
    own, shared = _move(plan.own, device), _move(plan.shared, device)
    return replace(plan, own=own, shared=shared, prox=prox, sample_weights=weights)


def _move_federation(light: Federation, device: torch.device) -> Federation:
    scale = (light.scale[0].to(device), light.scale[1].to(device)) if light.scale else None
    return replace(light, x=light.x.to(device), y=light.y.to(device), scale=scale)
