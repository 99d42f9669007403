"""An executor whose workers are processes. Samples and parameters are in shared memory; tasks are sent through pipes.

Run as a module, this file is the worker. It inherits its end of a pipe from the process that starts it, trains one task
at a time with one intra-op thread, and ends when that process ends.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import connection
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pflcli.core.engine.executors import Inference, run_task
from pflcli.core.engine.executors.shared_memory import Arena, Layout, attach
from pflcli.core.engine.executors.threads import Threads
from pflcli.core.engine.federation import Federation
from pflcli.core.engine.process_settings import keep_freed_memory
from pflcli.core.engine.strategy import WorkerNet
from pflcli.core.engine.trainer import Task
from pflcli.core.errors import LostWorkerError, PflError
from pflcli.core.parameters import Params, Stacked

T = TypeVar("T")

_EXIT_SECONDS = 2.0
"""Seconds that a worker may take to end by itself."""


class Processes:
    """An executor of ``jobs`` worker processes that share one federation.

    The processes train, and start with the longest tasks. The ``threads`` of this process predict, because sending the
    trained models to the workers would take longer than the predictions.
    """

    def __init__(self, threads: Threads, jobs: int, warn: Callable[[str], None]) -> None:
        data = threads.federation
        self._samples, self._parameters = Arena(), Arena()
        samples, views = self._samples.fill({"x": data.x, "y": data.y}, {})
        # This process also reads the samples from shared memory, so that they are in memory only once.
        self.federation = threads.federation = replace(data, x=views["x"], y=views["y"])
        self._threads, self._warn = threads, warn
        self._workers = [_Worker() for _ in range(jobs)]
        self._end = weakref.finalize(self, _end, self._workers, self._samples, self._parameters)
        self._layout_of_samples = samples
        for worker in self._workers:
            self._prepare(worker)

    def _prepare(self, worker: _Worker) -> None:
        """Send a worker what it needs before its first task."""
        light = replace(self.federation, x=torch.empty(0), y=torch.empty(0))
        with self._threads.net() as worker_net:
            worker.send(_Setup(worker_net, self._layout_of_samples, light))

    def _send_or_replace(self, worker: _Worker, layout: Layout, job: tuple[int, Task] | None = None) -> _Worker:
        """Send a worker a task, or else the layout of the parameters; return it, or a new one if it was killed."""
        try:
            worker.send(layout if job is None else job)
        except LostWorkerError as error:
            worker = self._replace(worker, layout, error)
            if job is not None:
                worker.send(job)
        return worker

    def _replace(self, lost: _Worker, layout: Layout, error: LostWorkerError) -> _Worker:
        """Return a new worker in place of one that was killed, with the parameters of this run in ``layout``."""
        self._warn(f"{error.message}: a new one trains its clients again")
        worker = _Worker()
        self._workers[self._workers.index(lost)] = worker
        lost.close()
        self._prepare(worker)
        worker.send(layout)
        return worker

    def run(self, tasks: Sequence[Task], start: Params | Stacked, out: Stacked) -> Iterator[NDArray[np.float64]]:
        """Train the tasks of a chunk into ``out`` (m, ...), complete at the end; yield their losses in order."""
        plan = tasks[0].plan
        groups = {"start": start, "own": plan.own, "shared": plan.shared, "anchor": plan.prox[0] if plan.prox else {}}
        inputs = {f"{group}:{name}": value for group, values in groups.items() for name, value in values.items()}
        layout, views = self._parameters.fill(inputs, {f"out:{name}": value for name, value in out.items()})
        light_plan = replace(plan, own={}, shared={}, prox=({}, plan.prox[1]) if plan.prox else None)
        waiting = [(index, replace(task, plan=light_plan)) for index, task in reversed(list(enumerate(tasks)))]
        losses: dict[int, NDArray[np.float64]] = {}
        busy: dict[Any, tuple[_Worker, tuple[int, Task]]] = {}
        idle, yielded = [self._send_or_replace(worker, layout) for worker in self._workers], 0
        repeated = set[int]()
        while len(losses) < len(tasks):
            while idle and waiting:
                job = waiting.pop()
                worker = self._send_or_replace(idle.pop(), layout, job)
                busy[worker.pipe] = worker, job
            for pipe in connection.wait(list(busy)):
                worker, job = busy.pop(pipe)
                try:
                    index, task_losses = worker.receive()
                except LostWorkerError as error:
                    if job[0] in repeated:  # the task itself may end its worker, as by its need of memory
                        raise
                    repeated.add(job[0])
                    waiting.append(job)
                    idle.append(self._replace(worker, layout, error))
                    continue
                losses[index] = task_losses
                idle.append(worker)
            while yielded in losses and len(losses) < len(tasks):
                yield losses[yielded]
                yielded += 1
        for name, value in out.items():
            value.copy_(views[f"out:{name}"])
        yield from (losses[index] for index in range(yielded, len(tasks)))

    def infer(self, tasks: Sequence[Inference], models: Params | Stacked) -> list[tuple[Tensor, Tensor]]:
        """Return the logits (n, C) and the representations (n, d), or (n, 0) without ``features``, of each task."""
        return self._threads.infer(tasks, models)

    def each(self, work: Callable[[int], T], count: int) -> list[T]:
        """Return ``work(0)`` to ``work(count - 1)``."""
        return self._threads.each(work, count)

    def close(self) -> None:
        """End the workers and release the memory; this also happens when the executor is garbage-collected."""
        self._threads.close()
        self._end()


def _end(workers: Sequence[_Worker], *arenas: Arena) -> None:
    """End the workers, then release the memory."""
    for worker in workers:
        worker.close()
    for arena in arenas:
        arena.close()


@dataclass(frozen=True)
class _Setup:
    """What a worker needs before its first task. ``federation`` has no samples; they are in memory at ``samples``."""

    net: WorkerNet
    samples: Layout
    federation: Federation


class _Worker:
    """A worker process and the pipe to it."""

    def __init__(self) -> None:
        self.pipe, other = connection.Pipe()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "pflcli.core.engine.executors.processes",
                str(other.fileno()),
                str(os.getpid()),
            ],
            pass_fds=(other.fileno(),),
            stdin=subprocess.DEVNULL,
            # The worker imports from the same folders as this process, and starts no OpenMP threads.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
        )
        other.close()

    def send(self, message: Any) -> None:
        """Send a picklable message; raises LostWorkerError if the process has ended."""
        try:
            self.pipe.send_bytes(pickle.dumps(message))
        except OSError:
            raise self._lost() from None

    def receive(self) -> tuple[int, NDArray[np.float64]]:
        """Return the index of a task and its losses; raise the error of the worker if it failed."""
        try:
            result = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            raise self._lost() from None
        if isinstance(result, BaseException):
            raise result
        index, losses = result
        return int(index), np.asarray(losses)

    def _lost(self) -> LostWorkerError:
        """Return an error that says how the process ended."""
        code = self._process.wait()
        why = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return LostWorkerError(
            f"a worker process {why}", "run the same command again to resume; fewer --jobs need less memory"
        )

    def close(self) -> None:
        """Let the process end and wait for it. Kill it if it is still training, because its result is not needed."""
        self.pipe.close()
        try:
            self._process.wait(timeout=_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve(pipe: connection.Connection) -> None:
    """Train the tasks received through ``pipe`` until it is closed."""
    torch.set_num_threads(1)
    keep_freed_memory()
    setup: _Setup = pickle.loads(pipe.recv_bytes())
    samples = attach(setup.samples)
    data = replace(setup.federation, x=samples["x"], y=samples["y"])
    views: dict[str, Tensor] = {}
    while True:
        try:
            message = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        if isinstance(message, Layout):
            views = attach(message)
            continue
        index, task = message
        try:
            result: Any = (index, _run_with_views(task, setup.net, data, views))
        except PflError as error:
            result = error
        except Exception as error:  # the other process adds the method and the round
            result = RuntimeError(f"in a worker process: {type(error).__name__}: {error}")
        pipe.send_bytes(pickle.dumps(result))


def _run_with_views(
    task: Task, worker_net: WorkerNet, data: Federation, views: dict[str, Tensor]
) -> NDArray[np.float64]:
    """Run a task on the parameters in shared memory."""

    def group(name: str) -> dict[str, Tensor]:
        return {key.split(":", 1)[1]: value for key, value in views.items() if key.startswith(f"{name}:")}

    plan = replace(task.plan, own=group("own"), shared=group("shared"))
    if plan.prox:
        plan = replace(plan, prox=(group("anchor"), plan.prox[1]))
    return run_task(replace(task, plan=plan), worker_net, data, group("start"), group("out"))


def _end_with(parent: int) -> None:
    """End this process as soon as the process ``parent`` has ended."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with, args=(int(sys.argv[2]),), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interruptions: it writes the checkpoint
    serve(connection.Connection(int(sys.argv[1])))
