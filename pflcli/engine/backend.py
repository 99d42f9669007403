"""Finds fast forms of computations in ``pflcli.accelerated``; no other module imports that package.

Every caller has a reference in PyTorch or NumPy for when ``part`` returns None: when acceleration is off, when Numba
is not installed, and when the package is deleted. Modules are found by name, so that no import leads from the engine to
the package, which imports the engine.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from pflcli.engine.optimizer_moves import Move

SWITCH = "PFL_ACCELERATED"
"""The environment variable that turns acceleration off if it is 0."""

_PACKAGE = "pflcli.accelerated"


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


def network(net: nn.Module, trained: Collection[str], program: Program) -> Any:
    """Return the passes of a network by its compiled program, a ``StackedNetwork``."""
    return _module("program_network").CompiledNetwork(net, trained, program)


def chain_network(chain: Any, trained: Collection[str]) -> Any:
    """Return the compiled passes of a chain of linear layers, a ``StackedNetwork``."""
    return _module("compiled_passes").CompiledChainNetwork(chain, trained)


def train_chain(*task: Any) -> NDArray[np.float64]:
    """Train clients whose network is a chain of linear layers in compiled loops, see ``compiled_chain.train``."""
    losses: NDArray[np.float64] = _module("compiled_chain").train(*task)
    return losses


def has_steps(rule: Any) -> bool:
    """Whether the steps of a gradient rule are compiled."""
    rules = part("rules")
    return rules is not None and rules.name(rule) in rules.STEPS


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
