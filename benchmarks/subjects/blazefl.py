"""BlazeFL: FedAvg of its ``contrib`` with its own server, and clients in threads, as it recommends, or one by one.

It asks for Python 3.14, and its threads gain most from an interpreter without a lock. Older interpreters run it too if
they read annotations as text and leave out the type parameter of its only generic function.
"""

# ruff: noqa: E402, blazefl can be imported only after its finder is in place

from __future__ import annotations
import __future__

import copy
import re
import sys
import types
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any

import torch
from torch import Generator, nn
from torch.utils.data import DataLoader, TensorDataset

from subjects import work


class Older(SourceFileLoader):
    """Reads a module of BlazeFL as Python before 3.14 can: without type parameters, and with annotations as text."""

    def get_code(self, fullname: str) -> types.CodeType:
        """Return the code of the module."""
        source = re.sub(r"(def \w+)\[\w+\]", r"\1", Path(self.path).read_text())
        return compile(source, self.path, "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True)


class OlderFinder(PathFinder):
    """Finds modules of BlazeFL for ``Older``."""

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return where a module is."""
        spec = super().find_spec(fullname, path, target) if fullname.split(".", maxsplit=1)[0] == "blazefl" else None
        if spec is not None and spec.origin is not None:
            spec.loader = Older(fullname, spec.origin)
        return spec


if sys.version_info < (3, 14):
    sys.meta_path.insert(0, OlderFinder)

from blazefl.contrib import fedavg


class Data:
    """The clients' samples, as a ``PartitionedDataset``."""

    def __init__(self, task: work.Task) -> None:
        self._sets, self._shuffles = [TensorDataset(x, y) for x, y in work.tensors(task)], not task.check

    def get_dataloader(self, type_: Any, cid: int, batch_size: int, generator: Generator) -> DataLoader[Any]:
        """Return a client's minibatches."""
        return DataLoader(self._sets[cid], batch_size=batch_size, shuffle=self._shuffles, generator=generator)


class Models:
    """Copies of the model, as a ``ModelSelector``."""

    def __init__(self, net: nn.Module) -> None:
        self._net = net

    def select_model(self, name: str) -> nn.Module:
        """Return a copy."""
        return copy.deepcopy(self._net)


def main() -> None:
    """Train and report."""
    task = work.Task.from_command_line()
    torch.set_num_threads(task.threads)
    setting, net = task.setting, work.net(task)
    if task.check:
        work.Steps.count(net)
    models, data, device = Models(net), Data(task), "cpu"
    share, seed = setting.cohort / task.clients, work.SEED
    server = fedavg.FedAvgBaseServerHandler(
        models, task.model, data, task.repeats, task.clients, share, device, setting.batch, seed
    )
    options = models, task.model, data, device, task.clients, 1, setting.batch, work.LR, seed
    clients = (
        fedavg.FedAvgThreadPoolClientTrainer(*options, task.workers)
        if task.workers > 1
        else fedavg.FedAvgBaseClientTrainer(*options)
    )
    clock = work.Clock()
    while not server.is_stopped():
        clock.begin()
        cohort, payload = server.sample_clients(), server.downlink_package()
        clients.local_process(payload, cohort)
        for package in clients.uplink_package():
            server.load(package)
        clock.end()
    work.report(task, clock, server.model.state_dict(), work.Steps.batch_sizes)


if __name__ == "__main__":
    main()
