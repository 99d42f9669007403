"""Finds compiled forms of computations in ``pflcli.accelerated``. No other module refers to that package.

``part`` returns None if acceleration is off, if Numba is not installed, or if the package has been deleted. Its callers
then compute the same in PyTorch or NumPy. Modules are found by name because the package imports the engine.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cache, wraps
from typing import Any, Protocol, TypeVar, cast

from torch import Tensor, nn

SWITCH = "PFL_ACCELERATED"
"""The environment variable that turns acceleration off if it is 0."""

_PACKAGE = "pflcli.accelerated"

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Program(Protocol):
    """A network's compiled forward and backward pass."""

    infers: bool
    """whether the forward pass is the same in training and in evaluation"""

    def model(self, params: Mapping[str, Tensor]) -> AbstractContextManager[Callable[[Tensor], tuple[Tensor, Tensor]]]:
        """Load a model's parameters for the block, whose value returns logits and representations of samples."""

    def forget(self) -> None:
        """Read all weights from the network again."""


def why_off() -> str | None:
    """Return why nothing is accelerated, or None if it is."""
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH} is 0"
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return "NUMBA_DISABLE_JIT is set"
    return _missing()


def part(name: str) -> Any:
    """Return the module ``name`` of the accelerated package, or None if acceleration is off."""
    return None if why_off() else _import(name)


def accelerated(name: str, when: Callable[..., bool] = lambda *args: True) -> Callable[[_Function], _Function]:
    """Replace calls of a function by calls of the function with the same name in the module ``name`` of the package.

    The decorated function still computes calls for whose arguments ``when`` is false, and all calls if acceleration is
    off.
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
    graph = part("graph")  # does not load Numba, because most networks have no program
    layers = graph.read(net, in_shape) if graph and next(net.parameters()).device.type == "cpu" else None
    compiled: Program | None = part("program").compile_network(net, layers) if layers else None
    return compiled


def compile_seconds() -> tuple[float, float]:
    """Return the wall-clock and processor seconds that this process has spent on importing Numba and compiling loops.

    Times of runs leave them out. Otherwise, the method that runs first would be charged with them.
    """
    compiler = sys.modules.get(f"{_PACKAGE}.compiler")
    seconds, processor = map(sum, zip((0.0, 0.0), *_importing, strict=True))
    if compiler is not None:
        seconds, processor = seconds + compiler.spent.seconds, processor + compiler.spent.processor_seconds
    return seconds, processor


def describe_products() -> str:
    """Return for users what computes matrix products."""
    products = part("products")
    return "matrix products by PyTorch" if products is None else str(products.DESCRIPTION)


_importing: list[tuple[float, float]] = []


@cache
def _import(name: str) -> Any:
    began, processor = time.monotonic(), time.thread_time()
    module = importlib.import_module(f"{_PACKAGE}.{name}")
    _importing.append((time.monotonic() - began, time.thread_time() - processor))
    return module


@cache
def _missing() -> str | None:
    """Return which package is missing, or None."""
    for name, reason in ((_PACKAGE, "the package is not installed"), ("numba", "Numba is not installed")):
        try:
            spec = importlib.util.find_spec(name)
        except ValueError:  # an import hook blocks it
            spec = None
        if spec is None or spec.origin is None:  # a folder without a module counts as absent
            return reason
    return None
