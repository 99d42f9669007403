"""Chooses how a worker trains clients and predicts, by network, plan and device. No other module decides that.

Each **backend** is a function of a request: it returns a strategy, or why it has none. The first that has one is used.
Compiled forms of plug-ins come first, the reference, which takes every request, last. The rules follow from
measurements with ``benchmarks/engines.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from pflcli.core import parameters
from pflcli.core.engine import backend, linear_chain
from pflcli.core.engine.backend import Program
from pflcli.core.engine.gradients import StackedNetwork
from pflcli.core.engine.linear_chain import ChainNetwork, Layer
from pflcli.core.engine.local_sgd import LocalSGD
from pflcli.core.engine.networks import AutogradNetwork, VmappedNetwork, has_batch_norm
from pflcli.core.engine.tasks import Task
from pflcli.core.parameters import Params

MODES = ("loop", "stacked")
"""Modes of the engine: a worker trains one client after the other, or many clients as one batched program."""


@dataclass(frozen=True)
class WorkerNet:
    """The network of one worker, which loads each client's parameters into it, and its fast forms if it has any."""

    net: nn.Module
    layers: list[Layer] | None
    """the layers, if the network is a chain of linear layers"""
    program: Program | None
    """the compiled program, if the network has one"""
    task: Task

    @property
    def is_random(self) -> bool | None:
        """Whether the network draws random numbers while it trains, None if it may: see ``models.Net``."""
        is_random: bool | None = self.layers is None and getattr(self.net, "is_random", False)
        return is_random

    @classmethod
    def compile(cls, net: nn.Module, in_shape: tuple[int, ...], task: Task) -> WorkerNet:
        """Compile ``net`` for samples of ``in_shape``. Not thread-safe, because it traces the network."""
        return cls(net, linear_chain.layers(net), backend.program(net, in_shape), task)


@dataclass(frozen=True)
class Request:
    """A number of ``clients`` that one worker trains together by ``plan``, on its network, in a mode of the engine."""

    worker: WorkerNet
    plan: LocalSGD
    mode: str
    clients: int

    @property
    def needs_autograd(self) -> str | None:
        """Why only autograd can compute the gradients, or None if any network can."""
        if self.plan.objective is not None:
            return "the method has a loss of its own"
        return None if self.plan.precision == "float32" else f"the precision is {self.plan.precision}"

    @property
    def why_alone(self) -> str | None:
        """Why clients cannot take their steps together, or None if they can."""
        if self.worker.is_random:
            return "the network draws random numbers"
        return "images are changed at random" if self.plan.augment else None

    @property
    def stacks(self) -> bool:
        """Whether many clients train as one batched program.

        A stack of one does the work of the loop at the additional cost of torch.func, which has no batching rule for
        recurrent layers.
        """
        recurrent = any(isinstance(module, nn.GRU | nn.RNN) for module in self.worker.net.modules())
        return self.mode == "stacked" and self.clients > 1 and self.why_alone is None and not recurrent

    @property
    def is_lockstep(self) -> bool:
        """Whether clients pass through one network one after the other in each step."""
        passes_alike = self.plan.frozen_norm or not has_batch_norm(self.worker.net)
        return self.plan.lockstep and self.clients > 1 and self.why_alone is None and passes_alike


@dataclass(frozen=True)
class Strategy:
    """How a worker trains clients, and ``why``: by which ``network``, given the names of the trained tensors."""

    name: str
    why: str
    network: Callable[[Collection[str]], StackedNetwork]
    stacked: bool = False
    """whether clients train together, or else one after the other"""
    independent: bool = True
    """whether no bit of a client depends on the other clients of a stack"""
    train: Callable[..., Any] | None = None
    """takes all steps of clients instead of the trainer, with the arguments of ``trainer.Worker.train``"""

    def __str__(self) -> str:
        """Return the description for users."""
        return f"{self.name}: {self.why}"


Backend = Callable[[Request], Strategy | str]
"""Returns how it trains the clients of a request, or why it cannot."""


def fastest_mode(net: nn.Module, device: str) -> str:
    """Return the mode (of ``MODES``) in which clients of this network train faster on a device."""
    if any(isinstance(module, nn.RNNBase) for module in net.modules()):
        return "loop"  # torch.func has no batching rule for recurrent layers
    if device == "cuda":
        return "stacked"
    return "stacked" if linear_chain.layers(net) is not None else "loop"


def choose(worker_net: WorkerNet, plan: LocalSGD, mode: str, clients: int) -> Strategy:
    """Return how one worker trains a number of ``clients`` together on its network."""
    request = Request(worker_net, plan, mode, clients)
    for offer in (*backend.offers("TRAINING"), _linear_chain, _stacks):
        found = offer(request)
        if isinstance(found, Strategy):
            return found
    return _reference(request)


def _linear_chain(request: Request) -> Strategy | str:
    layers = request.worker.layers
    if layers is None:
        return "the network is no chain of linear layers and ReLU"
    if reason := request.needs_autograd or (request.plan.augment and "images are changed at random"):
        return reason
    why = "linear layers and ReLU alone need no autograd"
    return Strategy("linear chain", why, lambda names: ChainNetwork(layers, names), stacked=True)


def _stacks(request: Request) -> Strategy | str:
    if not request.stacks:
        return request.why_alone or f"in mode {request.mode} the engine trains one client at a time"
    net, plan = request.worker.net, request.plan
    why = "in mode stacked the engine trains many clients at a time"
    return Strategy(
        "stacks by torch.func",
        why,
        lambda names: VmappedNetwork(net, names, plan.precision, frozen_norm=plan.frozen_norm),
        stacked=True,
        independent=False,
    )


def _reference(request: Request) -> Strategy:
    net, plan = request.worker.net, request.plan
    name, why = "autograd, one client at a time", request.why_alone or _why_autograd(request)
    if request.is_lockstep:
        name, why = "lockstep", "clients take each step together, as it reads much that they share"
    return Strategy(
        name,
        why,
        lambda names: AutogradNetwork(net, names, plan.precision, frozen_norm=plan.frozen_norm),
        stacked=request.is_lockstep,
        independent=False,
    )


def _why_autograd(request: Request) -> str:
    """Return why neither stacks nor a compiled program can be used."""
    if reason := request.needs_autograd:
        return reason
    if request.plan.frozen_norm and has_batch_norm(request.worker.net):
        return "the statistics of BatchNorm are frozen"
    if off := backend.why_off():
        return f"acceleration is off, as {off}"
    return "the network has layers without a compiled form, or its images are large, or it is not on a CPU"


Forward = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Returns the logits (n, C) and representations (n, d) of samples (n, ...)."""


@dataclass(frozen=True)
class Prediction:
    """How workers predict, and ``why``: ``forward`` loads a model into one of them for a block."""

    name: str
    why: str
    forward: Callable[[WorkerNet, Params], AbstractContextManager[Forward]]
    shared: bool = True
    """whether several threads may predict by one model at the same time"""
    stack: StackedNetwork | None = None
    """predicts with several models in one call"""

    def __str__(self) -> str:
        """Return the description for users."""
        return f"{self.name}: {self.why}"


def choose_inference(worker: WorkerNet, *, training: bool) -> Prediction:
    """Return how workers predict, by the network of one of them; outside ``training``, no compiled loops are loaded."""
    for offer in (*backend.offers("PREDICTION"), _chain_predictions):
        found = offer(worker, training)
        if isinstance(found, Prediction):
            return found
    off = backend.why_off()
    why = f"acceleration is off, as {off}" if off else "the network has layers without a faster form"
    return Prediction("network", why, _load)


def _chain_predictions(worker: WorkerNet, training: bool) -> Prediction | str:
    layers = worker.layers
    if layers is None:
        return "the network is no chain of linear layers and ReLU"
    why = "linear layers and ReLU need no copy of the model"
    return Prediction(
        "linear chain", why, lambda worker, model: nullcontext(partial(linear_chain.outputs, layers, model))
    )


@contextmanager
def _load(worker: WorkerNet, params: Params) -> Iterator[Forward]:
    """Load parameters into the network of a worker, in evaluation mode."""
    net: Any = worker.net

    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        z = net.body(x)
        return net.head(z), z

    parameters.load(net, params)
    net.eval()
    yield forward
