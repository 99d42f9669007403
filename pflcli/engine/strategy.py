"""Chooses how a worker trains clients, by the network, the plan and the device. No other module decides that.

The rules follow from measurements with ``benchmarks/engines.py``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from torch import nn

from pflcli.engine import backend, linear_chain
from pflcli.engine.backend import Program
from pflcli.engine.gradients import StackedNetwork
from pflcli.engine.linear_chain import Layer
from pflcli.engine.local_sgd import LocalSGD
from pflcli.engine.networks import AutogradNetwork, VmappedNetwork, has_batch_norm

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

    @property
    def is_random(self) -> bool | None:
        """Whether the network draws random numbers while it trains, None if it may: see ``models.Net``."""
        is_random: bool | None = getattr(self.net, "is_random", False)
        return is_random

    @property
    def can_stack(self) -> bool:
        """Whether torch.func can train stacks of this network: it has no batching rule for recurrent layers."""
        return not any(isinstance(module, nn.GRU | nn.RNN) for module in self.net.modules())

    @property
    def compiles_chain(self) -> bool:
        """Whether the network is a chain of linear layers for which compiled loops are faster than PyTorch."""
        return self.layers is not None and linear_chain.pays_to_compile(self.net.parameters())

    @classmethod
    def compile(cls, net: nn.Module, in_shape: tuple[int, ...]) -> WorkerNet:
        """Compile ``net`` for samples of ``in_shape``. Not thread-safe, because it traces the network."""
        return cls(net, linear_chain.layers(net), backend.program(net, in_shape))


@dataclass(frozen=True)
class Strategy:
    """How a worker trains clients and ``why``, with the ``layers`` or the ``program`` that it uses."""

    name: str
    why: str
    stacked: bool
    layers: list[Layer] | None = None
    program: Program | None = None
    in_place: bool = False
    """whether a compiled loop takes all steps of a client, one client after the other"""
    lockstep: bool = False
    """whether the clients of a stack pass through the same network, one after the other in each step"""

    def network(self, worker_net: WorkerNet, names: Collection[str], plan: LocalSGD) -> StackedNetwork:
        """Return the passes of the network, of which the parameters ``names`` are trained."""
        if self.layers:
            return linear_chain.network(self.layers, names, worker_net.net.parameters())
        if self.program:
            compiled: StackedNetwork = backend.part("program").CompiledNetwork(worker_net.net, names, self.program)
            return compiled
        kind = VmappedNetwork if self.stacked and not self.lockstep else AutogradNetwork
        return kind(worker_net.net, names, plan.precision, frozen_norm=plan.frozen_norm)

    def __str__(self) -> str:
        """Return the description for users."""
        return f"{self.name}: {self.why}"


def fastest_mode(net: nn.Module, device: str) -> str:
    """Return the mode (of ``MODES``) in which clients of this network train faster on a device."""
    if any(isinstance(module, nn.RNNBase) for module in net.modules()):
        return "loop"  # torch.func has no batching rule for recurrent layers
    if device == "cuda":
        return "stacked"
    return "stacked" if linear_chain.layers(net) is not None else "loop"


def choose(worker_net: WorkerNet, plan: LocalSGD, mode: str, clients: int) -> Strategy:
    """Return how one worker trains a number of ``clients`` together on its network."""
    layers, why_alone = _trainable_layers(worker_net, plan), _why_alone(worker_net, plan)
    if layers is not None:
        if not worker_net.compiles_chain:
            return Strategy("linear chain", "linear layers and ReLU alone need no autograd", True, layers=layers)
        if plan.update.is_plain and not plan.trains_own_tensors:
            why = f"one compiled loop takes all steps of a client; {backend.describe_products()}"
            return Strategy("compiled linear chain", why, True, layers=layers, in_place=True)
        why = f"linear layers and ReLU alone need no autograd; {backend.describe_products()}"
        return Strategy("linear chain", why, True, layers=layers)
    # A stack of one client does the work of the loop at the additional cost of torch.func.
    if mode == "stacked" and clients > 1 and worker_net.can_stack and why_alone is None:
        return Strategy("stacks by torch.func", f"in mode {mode} the engine trains many clients at a time", True)
    program = worker_net.program if _uses_gradients(plan) else None
    compiled = program if program is not None and (program.infers or not plan.frozen_norm) else None
    shares_passes = why_alone is None and (plan.frozen_norm or not has_batch_norm(worker_net.net))
    if plan.lockstep and clients > 1 and shares_passes:
        why = "clients take each step together, as it reads much that they share"
        return Strategy("lockstep", why, True, program=compiled, lockstep=True)
    if compiled is not None:
        why = f"every layer of the network has a compiled form; {backend.describe_products()}"
        return Strategy("compiled program", why, False, program=compiled)
    return Strategy("autograd, one client at a time", why_alone or _why_autograd(plan, worker_net.net), False)


def _uses_gradients(plan: LocalSGD) -> bool:
    """Whether clients train by the cross-entropy or by a gradient rule, in float32."""
    return plan.objective is None and plan.precision == "float32"


def _trainable_layers(worker_net: WorkerNet, plan: LocalSGD) -> list[Layer] | None:
    """Return the network's linear layers if clients can train them without autograd."""
    return worker_net.layers if _uses_gradients(plan) and not plan.augment else None


def _why_alone(worker_net: WorkerNet, plan: LocalSGD) -> str | None:
    """Return why clients cannot take their steps together, or None if they can."""
    if worker_net.is_random:
        return "the network draws random numbers"
    return "images are changed at random" if plan.augment else None


def _why_autograd(plan: LocalSGD, net: nn.Module) -> str:
    """Return why neither stacks nor a compiled program can be used."""
    if plan.objective is not None:
        return "the method has a loss of its own"
    if plan.precision != "float32":
        return f"the precision is {plan.precision}"
    if plan.frozen_norm and has_batch_norm(net):
        return "the statistics of BatchNorm are frozen"
    if off := backend.why_off():
        return f"acceleration is off, as {off}"
    return "the network has layers without a compiled form, or its images are large, or it is not on a CPU"
