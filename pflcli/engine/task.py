"""A task: clients that one worker, a thread or a process, trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli import parameters, rng
from pflcli.engine import loop, stacked, strategy
from pflcli.engine.federation import Federation
from pflcli.engine.local_sgd import LocalSGD, is_stacked
from pflcli.engine.resident import ResidentNet
from pflcli.parameters import Params, Stacked


@dataclass(frozen=True)
class Task:
    """Clients ``first`` to ``last`` (exclusive) of a chunk, and how they train; ``plan`` is that of the whole chunk."""

    mode: str
    first: int
    last: int
    clients: NDArray[np.int64]
    plan: LocalSGD
    seed: int
    key: tuple[Any, ...]
    rows: NDArray[np.int64] | None = None
    """rows of the federation on which the only client trains, instead of its own samples"""


def run_task(
    task: Task, resident: ResidentNet, data: Federation, start: Params | Stacked, out: Stacked
) -> NDArray[np.float64]:
    """Train the task's clients into their rows of ``out``; returns their mean losses (m,).

    ``start`` and ``out`` are those of the whole chunk. What a client learns does not depend on the worker. It does not
    depend on the other clients either: bit by bit one by one and in stacks of linear chains, where ``local_sgd.widths``
    pads each client by its own samples alone; otherwise up to rounding, as batched kernels may add in another order. A
    request stacks the same clients on every machine, so that its bytes stay the same.
    """
    data = data if task.rows is None else data.pooled(task.rows)
    span = slice(task.first, task.last)
    like = {name: value[0] for name, value in out.items()}
    trained = {name: value[span] for name, value in out.items()}
    initial = {name: value[span] for name, value in start.items()} if is_stacked(start, like) else start
    plan = task.plan.for_clients(np.arange(task.first, task.last), like)
    draws = [rng.generator(task.seed, *task.key, int(client)) for client in task.clients]
    how = strategy.choose(resident, plan, task.mode, len(task.clients))
    if how.stacked:
        return stacked.train_stack(resident.net, data, task.clients, draws, initial, trained, plan, how.layers)
    losses = [
        loop.train_client(
            resident.net,
            data,
            int(client),
            parameters.pick(initial, index) if is_stacked(initial, like) else initial,
            parameters.pick(trained, index),
            plan.for_client(index, like),
            draws[index],
            how.program,
        )
        for index, client in enumerate(task.clients)
    ]
    return np.asarray(losses)
