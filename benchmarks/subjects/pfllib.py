"""PFLlib: its own programs, run by their own command lines in a copy of its checkout.

Only what surrounds them is ours: the network and its initial weights, which are those of pfl; clocks around
evaluations; one more evaluation after the last round, whose time is not counted, so that both sides report the models
of the same round; and no report of memory at the end.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import runpy
import sys
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pflcli.core import vision

EVALUATIONS = ("evaluate", "evaluate_personalized", "evaluate_one_step")
"""Methods of PFLlib's servers that test all clients."""
KEEPS_MODELS = ("Local",)
"""Algorithms whose server has no model to send before clients are tested."""
TESTS_AT_THE_END = ("FedBABU",)
"""Algorithms that test by themselves once the last round is over."""


@dataclass
class Clocks:
    """Seconds and processor seconds of each evaluation, and of what is not counted; ``accuracies`` of evaluations."""

    evaluations: list[tuple[float, float]] = field(default_factory=list)
    uncounted: tuple[float, float] = (0.0, 0.0)
    accuracies: list[float] = field(default_factory=list)
    running: bool = False


@contextlib.contextmanager
def measured(spent: list[tuple[float, float]]) -> Iterator[None]:
    """Add the seconds and processor seconds of the block to ``spent``."""
    began = time.perf_counter(), time.process_time()
    yield
    spent.append((time.perf_counter() - began[0], time.process_time() - began[1]))


class _Network(nn.Module):
    """A network whose last layer is where PFLlib looks for it."""

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.body, self.fc = body, head

    def forward(self, x: Tensor) -> Any:
        """Return logits (n, classes)."""
        return self.fc(self.body(x))


class Logistic(_Network):
    """The network of pfl's ``logistic``."""

    def __init__(self, inputs: int, num_classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(inputs, num_classes))


class Mlp(_Network):
    """The network of pfl's ``mlp``."""

    def __init__(self, inputs: int, _hidden: int, num_classes: int) -> None:
        body = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU())
        super().__init__(body, nn.Linear(200, num_classes))


def generate(task: dict[str, Any]) -> None:
    """Let PFLlib's generator deal the samples, and write them all to one NPZ file for ``pfl import``."""
    sys.argv = ["generate_FashionMNIST.py", "noniid", "-", "dir"]
    runpy.run_path(sys.argv[0], run_name="__main__")
    columns: dict[str, list[Any]] = {"x": [], "label": [], "client": [], "split": []}
    for split in ("train", "test"):
        for path in sorted(Path("FashionMNIST", split).glob("*.npz"), key=lambda path: int(path.stem)):
            rows = np.load(path, allow_pickle=True)["data"].item()  # written a moment ago, by the generator
            columns["x"].append(rows["x"])
            columns["label"].append(rows["y"])
            columns["client"].append(np.full(len(rows["y"]), int(path.stem)))
            columns["split"].append(np.full(len(rows["y"]), split))
    np.savez(task["out"], **{name: np.concatenate(parts) for name, parts in columns.items()})


def train(task: dict[str, Any]) -> None:
    """Run an algorithm, and report the clocks."""
    clocks = Clocks()
    torch.set_num_threads(task["threads"])
    sys.modules["utils.mem_utils"] = types.ModuleType("utils.mem_utils")
    sys.modules["utils.mem_utils"].MemReporter = _NoReport  # type: ignore[attr-defined]
    with contextlib.suppress(ImportError):
        importlib.import_module("cvxpy")
    sys.modules.setdefault("cvxpy", types.ModuleType("cvxpy"))
    sys.argv = ["main.py", *task["arguments"]]
    networks = importlib.import_module("flcore.trainmodel.models")
    # This file once more, as a module: PFLlib pickles models, and its program is ``__main__`` then.
    own = importlib.import_module("subjects.pfllib")
    networks.DNN, networks.Mclr_Logistic = own.Mlp, own.Logistic
    for network in (networks.FedAvgCNN, networks.DNN, networks.Mclr_Logistic):
        network.__init__ = _with_weights(network.__init__, task["weights"])
    for path in Path("flcore/servers").glob("server*.py"):
        servers = importlib.import_module(f"flcore.servers.{path.stem}")
        for server in vars(servers).values():
            if isinstance(server, type) and server.__module__ == servers.__name__:
                _watch(server, clocks, task["arguments"][task["arguments"].index("-algo") + 1])
    runpy.run_path("main.py", run_name="__main__")
    facts = asdict(clocks) | {"torch": torch.__version__}
    Path(task["out"]).write_text(json.dumps(facts))


class _NoReport:
    def report(self) -> None:
        """Leave out the report on memory."""


def _with_weights(initialize: Callable[..., None], weights: str) -> Callable[..., None]:
    def initialized(net: nn.Module, *args: Any, **options: Any) -> None:
        initialize(net, *args, **options)
        with np.load(weights) as arrays, torch.no_grad():
            # Both sides list convolutions and layers from the first to the last, each with weights before biases.
            for parameter, name in zip(net.parameters(), arrays.files, strict=True):
                parameter.copy_(torch.from_numpy(arrays[name]))

    return initialized


def _watch(server: type, clocks: Clocks, algorithm: str) -> None:
    for name in EVALUATIONS:
        if name in vars(server):
            setattr(server, name, _timed(vars(server)[name], clocks))
    if "save_results" in vars(server):
        server.save_results = _tested(vars(server)["save_results"], clocks, algorithm)  # type: ignore[attr-defined]


def _timed(evaluate: Callable[..., None], clocks: Clocks) -> Callable[..., None]:
    def timed(self: Any, *args: Any, **options: Any) -> None:
        if clocks.running:
            return evaluate(self, *args, **options)
        clocks.running = True
        with measured(clocks.evaluations):
            evaluate(self, *args, **options)
        clocks.running = False
        return None

    return timed


def _tested(save_results: Callable[..., None], clocks: Clocks, algorithm: str) -> Callable[..., None]:
    def tested(self: Any) -> None:
        spent: list[tuple[float, float]] = []
        with measured(spent):
            if algorithm not in TESTS_AT_THE_END:
                clocks.running = True
                if algorithm not in KEEPS_MODELS:
                    self.send_models()
                # The last of an algorithm's own evaluations is that of the models that clients would use.
                evaluate = next(name for name in reversed(EVALUATIONS) if hasattr(self, name))
                getattr(self, evaluate)()
                clocks.running = False
        clocks.uncounted = spent[0]
        clocks.accuracies = [float(value) for value in getattr(self, "rs_test_acc_per", None) or self.rs_test_acc]
        save_results(self)

    return tested


def main() -> None:
    """Do what the command line says, in the folder of PFLlib's program."""
    task = json.loads(sys.argv[1])
    vision.torchvision()  # also beside a build of torch that its extension does not fit
    sys.path.insert(0, "")
    {"generate": generate, "train": train}[task["work"]](task)


if __name__ == "__main__":
    main()
