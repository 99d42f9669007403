"""The work that every library does: data, model, cohort and steps, the same numbers in every environment."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pflcli.core import rng
from pflcli.core.models import Net, create
from subjects import processes

SEED = 0
LR = 0.01
RANK = os.environ.get("RANK")
"""Which of several processes under torchrun this is, if so."""


@dataclass(frozen=True)
class Setting:
    """Clients of equal size, ``cohort`` of them a round: one local epoch of SGD in batches of ``batch``."""

    shape: tuple[int, ...]
    classes: int
    clients: int
    samples: int
    cohort: int
    batch: int

    @property
    def firsts(self) -> range:
        """Where the minibatches of one client begin."""
        return range(0, self.samples, self.batch)


SETTINGS = {
    "cnn": Setting((28, 28), 62, 100, 250, 10, 32),
    "mobilenet-v2": Setting((32, 32, 3), 10, 100, 250, 10, 32),
    "mlp": Setting((28, 28), 10, 100, 50, 100, 10),
    "logistic": Setting((28, 28), 10, 100, 50, 100, 10),
}
"""By model. The last two are where the cost of starting operators rules: many small clients, all of them each round."""


@dataclass(frozen=True)
class Task:
    """What one process is asked for.

    ``workers`` processes with ``threads`` intra-op threads each; if one ``keeps_memory``, with pfl's settings of the
    allocator. With ``check``, the clients are one cohort, all take part in a single round, and minibatches come in
    pfl's order: every library must then arrive at the same model.
    """

    model: str
    rounds: int
    workers: int
    threads: int
    check: bool
    out: str
    mode: str = "auto"
    keeps_memory: bool = False

    @classmethod
    def from_command_line(cls) -> Task:
        """Return the task on the command line."""
        return cls(**json.loads(sys.argv[1]))

    @property
    def json(self) -> str:
        """The task as it stands on the command line."""
        return json.dumps(asdict(self))

    @property
    def setting(self) -> Setting:
        """The setting that belongs to the model; to check MobileNet-v2, clients have one minibatch.

        From the second step on, rounding errors grow so fast that one loop with one and with two threads parts.
        """
        setting = SETTINGS[self.model]
        return replace(setting, samples=setting.batch) if self.check and self.model == "mobilenet-v2" else setting

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return self.setting.cohort if self.check else self.setting.clients

    @property
    def repeats(self) -> int:
        """How many rounds to train: the first of them is not counted, unless it is the only one."""
        return 1 if self.check else self.rounds + 1


def samples(task: Task) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return random images (n, ...) and labels (n,) of all clients, one block each."""
    setting, draw = task.setting, np.random.default_rng(SEED)
    n = task.clients * setting.samples
    return draw.integers(0, 256, (n, *setting.shape), dtype=np.uint8), draw.integers(0, setting.classes, n)


def tensors(task: Task) -> list[tuple[Tensor, Tensor]]:
    """Return each client's inputs, float32 in [0, 1] with channels first, and labels; to check, in pfl's order."""
    x, y = samples(task)
    images = torch.from_numpy(x)
    images = images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2)
    inputs, labels = images.float().div(255).contiguous(), torch.from_numpy(y)
    size, batches = task.setting.samples, []
    for client in range(task.clients):
        rows = np.arange(client * size, (client + 1) * size)
        if task.check:
            rows = rows[rng.generator(SEED, "sgd", 0, client).permutation(size)]
        batches.append((inputs[rows], labels[rows]))
    return batches


def net(task: Task) -> Net:
    """Return the model with pfl's initial weights."""
    shape = task.setting.shape
    in_shape = (1, *shape) if len(shape) == 2 else (shape[2], *shape[:2])
    return create(task.model, in_shape, task.setting.classes, SEED)


class Steps:
    """Counts the training batches that a model sees; copies of the model count here too."""

    batch_sizes: ClassVar[list[int]] = []

    @classmethod
    def count(cls, model: nn.Module) -> None:
        """Count from now on."""
        model.register_forward_pre_hook(_see)


def _see(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    if torch.is_grad_enabled():
        Steps.batch_sizes.append(len(inputs[0]))


class Clock:
    """Notes how long rounds last, and the processor time of all the subject's processes up to their ends."""

    def __init__(self) -> None:
        # Under torchrun, a sibling's work counts as well.
        self._root = os.getppid() if RANK is not None else os.getpid()
        self._seconds: list[float] = []
        self._processor: list[float] = []

    def begin(self) -> None:
        """Begin a round."""
        self._began = time.perf_counter()

    def end(self) -> None:
        """End a round."""
        self._seconds.append(time.perf_counter() - self._began)
        self._processor.append(sum(processes.descendants(self._root).values()))

    def facts(self) -> dict[str, Any]:
        """Return the seconds of each round and the mean processor seconds of one, both without the first."""
        took = (self._processor[-1] - self._processor[0]) / max(len(self._seconds) - 1, 1)
        return {"seconds": self._seconds[1:], "processor": took}


def report(task: Task, clock: Clock, parameters: Mapping[str, Tensor], steps: list[int], mode: str = "") -> None:
    """Write what the clock saw; to check, the model's parameters and the sizes of the batches of one round."""
    out, rank = Path(task.out), int(RANK or 0)
    if rank == 0:
        out.with_suffix(".json").write_text(json.dumps({**clock.facts(), "mode": mode}))
    if task.check:
        out.with_suffix(f".{rank}.steps").write_text(json.dumps(steps))
        if rank == 0:
            np.savez(out.with_suffix(".npz"), **{name: value.detach().numpy() for name, value in parameters.items()})
