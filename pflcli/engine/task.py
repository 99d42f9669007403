"""A task: clients that one worker, a thread or a process, trains."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli import parameters, rng
from pflcli.engine import backend, loop, stacked, strategy
from pflcli.engine.federation import Federation
from pflcli.engine.local_sgd import LocalSGD, is_stacked
from pflcli.engine.worker_net import WorkerNet
from pflcli.errors import UsageError
from pflcli.parameters import Params, Stacked


@dataclass(frozen=True, eq=False)
class Task:
    """The ``clients`` at some ``places`` of a chunk, and how they train; ``plan`` is that of the whole chunk."""

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
    """Train the task's clients into their places in ``out``; returns their mean losses (m,).

    ``start`` and ``out`` are those of the whole chunk. What a client learns does not depend on the worker. It does not
    depend on the other clients either: bit by bit one by one and in stacks of linear chains, where ``local_sgd.widths``
    pads each client by its own samples alone; otherwise up to rounding, as batched kernels may add in another order. A
    request stacks the same clients on every machine, so that its bytes stay the same.
    """
    data = data if task.rows is None else data.pooled(task.rows)
    like = {name: value[0] for name, value in out.items()}
    own_start = is_stacked(start, like)
    draws = [rng.generator(task.seed, *task.key, int(client)) for client in task.clients]
    how = strategy.choose(worker_net, task.plan, task.mode, len(task.clients))
    if how.in_place:
        assert how.layers is not None
        return backend.train_chain(how.layers, data, task.clients, draws, task.places, start, out, task.plan)
    try:
        if how.stacked:
            net, plan = worker_net.net, task.plan
            try:
                return stacked.train_stack(net, data, task.clients, draws, task.places, start, out, plan, how)
            except RuntimeError as error:  # torch.func raises no other kind
                if not re.search("vmap|atching rule", str(error)):
                    raise
                reason = str(error).partition(". ")[0]
                raise UsageError(f"this network cannot be trained in stacks: {reason}", "--engine loop") from None
        losses = np.empty(len(task.clients))
        for index, (place, client) in enumerate(zip(task.places.tolist(), task.clients, strict=True)):
            own, to = parameters.pick(start, place) if own_start else start, parameters.pick(out, place)
            plan = task.plan.for_client(place, like)
            key = (*task.key, int(client))
            image_draw = rng.generator(task.seed, "augment", *key) if plan.augment else None
            with rng.seeded_torch(task.seed, "network", *key) if worker_net.is_random else nullcontext():
                losses[index] = loop.train_client(
                    worker_net.net, data, int(client), own, to, plan, draws[index], how.program, image_draw
                )
        return losses
    finally:
        if worker_net.program is not None:
            worker_net.program.forget()  # the weights of these clients
