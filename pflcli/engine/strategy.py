"""Chooses how clients are trained, from the network, the plan and the device. No other module decides that.

``benchmarks/engines.py`` backs the rules.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from pflcli.engine import backend, linear_chain
from pflcli.engine.backend import Program
from pflcli.engine.linear_chain import Layer
from pflcli.engine.local_sgd import LocalSGD
from pflcli.engine.loop import has_batch_norm
from pflcli.engine.worker_net import WorkerNet

MODES = ("loop", "stacked")
"""Modes of the engine: a worker trains one client after the other, or many clients as one batched program."""


@dataclass(frozen=True)
class Strategy:
    """How a worker trains clients and ``why``, with the ``layers`` or the ``program`` that it then uses."""

    name: str
    why: str
    stacked: bool
    layers: list[Layer] | None = None
    program: Program | None = None
    in_place: bool = False
    """whether a compiled loop takes the steps, one client after the other"""
    lockstep: bool = False
    """whether clients of a stack pass through the same network, one after the other in each step"""

    def __str__(self) -> str:
        """Return the text for users."""
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
    layers, why_alone = _layers(worker_net, plan), _why_alone(worker_net, plan)
    if layers is not None:
        if not worker_net.compiles_chain:
            return Strategy("linear chain", "linear layers and ReLU alone need no autograd", True, layers=layers)
        bare = not (plan.prox and plan.prox[1])
        if plan.is_plain and (plan.gradient is None or (bare and backend.has_steps(plan.gradient))):
            why = f"one compiled loop takes all steps of a client; {backend.products_in_words()}"
            return Strategy("compiled linear chain", why, True, layers=layers, in_place=True)
        why = f"linear layers and ReLU alone need no autograd; {backend.products_in_words()}"
        return Strategy("linear chain", why, True, layers=layers)
    # A stack of one client would do the work of the loop at the additional cost of torch.func.
    if mode == "stacked" and clients > 1 and worker_net.can_stack and why_alone is None:
        return Strategy("stacks by torch.func", f"in mode {mode} the engine trains many clients at a time", True)
    program = worker_net.program if _is_plain(plan) else None
    compiled = program if program is not None and (program.infers or not plan.frozen_norm) else None
    shares_passes = why_alone is None and (plan.frozen_norm or not has_batch_norm(worker_net.net))
    if plan.lockstep and clients > 1 and shares_passes:
        why = "clients take each step together, as it reads much that they share"
        return Strategy("lockstep", why, True, program=compiled, lockstep=True)
    if compiled is not None:
        why = f"every layer of the network has a compiled form; {backend.products_in_words()}"
        return Strategy("compiled program", why, False, program=compiled)
    return Strategy("autograd, one client at a time", why_alone or _no_program(plan, worker_net.net), False)


def _is_plain(plan: LocalSGD) -> bool:
    """Whether clients train by the cross-entropy, or by a rule for gradients, in float32."""
    return plan.objective is None and plan.precision == "float32"


def _layers(worker_net: WorkerNet, plan: LocalSGD) -> list[Layer] | None:
    """Return the network's linear layers if clients can train on them without autograd."""
    return worker_net.layers if _is_plain(plan) and not plan.augment else None


def _why_alone(worker_net: WorkerNet, plan: LocalSGD) -> str | None:
    """Return why clients cannot take their steps together, or None if they can."""
    if worker_net.is_random:
        return "the network draws random numbers"
    return "images are changed at random" if plan.augment else None


def _no_program(plan: LocalSGD, net: nn.Module) -> str:
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
