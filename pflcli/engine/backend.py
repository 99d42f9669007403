"""Finds fast forms of computations in ``pflcli.accelerated``; no other module imports that package.

Every caller has a reference in PyTorch or NumPy for when ``part`` returns None: when acceleration is off, when Numba
is not installed, and when the package is deleted. Modules are found by name, so that no import leads from the engine to
the package, which imports the engine.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

SWITCH = "PFL_ACCELERATED"
"""The environment variable that turns acceleration off if it is 0."""

_PACKAGE = "pflcli.accelerated"

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Move:
    """A weight that changes by minus a rate times its gradient, in the product that computes this.

    Before that it moves by ``part`` of the way to the ``anchor``, and by minus the rate times the ``drift``. If the
    gradient ``replaces`` it, there is no rate.
    """

    weight: Tensor
    rate: float
    anchor: Tensor | None = None
    part: float = 0.0
    drift: Tensor | None = None
    replaces: bool = False


class Program(Protocol):
    """A network's compiled forward and backward pass."""

    grads: dict[str, Tensor]
    linear: frozenset[str]
    infers: bool

    def step(
        self,
        x: Tensor,
        y: Tensor,
        weight: Tensor | None,
        names: Collection[str] | None = None,
        moves: Mapping[str, Move] | None = None,
    ) -> Tensor:
        """Return the loss of a batch, and write its gradients or take the ``moves``."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and representations."""

    def model(self, params: Mapping[str, Tensor]) -> AbstractContextManager[None]:
        """Use a model's parameters inside the block."""

    def forget(self) -> None:
        """Read all weights in the network again."""


def why_off() -> str | None:
    """Return why nothing is accelerated, or None if it is."""
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH} is 0"
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return "NUMBA_DISABLE_JIT is set"
    return _missing()


def part(name: str) -> Any | None:
    """Return a module of the accelerated package by its name there, or None if acceleration is off."""
    return None if why_off() else _module(name)


def accelerated(name: str, when: Callable[..., bool] = lambda *args: True) -> Callable[[_Function], _Function]:
    """Let a function be computed by the function of its name in a module of the package, for arguments ``when`` it can.

    The function is the reference: it runs where acceleration is off.
    """

    def decorate(reference: _Function) -> _Function:
        @wraps(reference)
        def call(*args: Any) -> Any:
            module = part(name) if when(*args) else None
            return (reference if module is None else getattr(module, reference.__name__))(*args)

        return cast("_Function", call)

    return decorate


def program(net: nn.Module, in_shape: tuple[int, ...]) -> Program | None:
    """Return the compiled program of a network for samples of ``in_shape``, or None if it has none."""
    graph = part("graph")  # which does without Numba, as most networks have no program
    layers = graph.read(net, in_shape) if graph and next(net.parameters()).device.type == "cpu" else None
    compiled: Program | None = _module("program").compile_network(net, layers) if layers else None
    return compiled


def network(net: nn.Module, trained: Collection[str], program: Program) -> Any:
    """Return the passes of a network by its compiled program, a ``StackedNetwork``."""
    return _module("program").CompiledNetwork(net, trained, program)


def chain_network(chain: Any, trained: Collection[str]) -> Any:
    """Return the compiled passes of a chain of linear layers, a ``StackedNetwork``."""
    return _module("chains").CompiledChainNetwork(chain, trained)


def train_chain(*task: Any) -> NDArray[np.float64]:
    """Train clients whose network is a chain of linear layers in compiled loops, see ``accelerated/steps.py``."""
    losses: NDArray[np.float64] = _module("steps").train(*task)
    return losses


def has_steps(rule: Any) -> bool:
    """Whether the steps of a gradient rule are compiled."""
    steps = part("steps")
    return steps is not None and steps.registered_name(rule) in steps.STEPS


def products_in_words() -> str:
    """Return what computes matrix products."""
    products = part("products")
    return "matrix products by PyTorch" if products is None else str(products.WHY)


@cache
def _module(name: str) -> Any:
    return importlib.import_module(f"{_PACKAGE}.{name}")


@cache
def _missing() -> str | None:
    for name, reason in ((_PACKAGE, "the package is not installed"), ("numba", "Numba is not installed")):
        try:
            spec = importlib.util.find_spec(name)
        except ValueError:  # an import hook blocks it
            spec = None
        if spec is None or spec.origin is None:  # a folder without a module counts as absent
            return reason
    return None
