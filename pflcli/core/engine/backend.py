"""Finds compiled forms of computations in plug-ins, which ``BACKENDS`` of their ``plugin.py`` names.

``part`` returns None if acceleration is off, if Numba is not installed, or if there is no such plug-in. Its callers
then compute the same in PyTorch or NumPy. Modules are found by name because plug-ins import the engine.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cache, wraps
from typing import Any, Protocol, TypeVar, cast

from torch import Tensor, nn

from pflcli.core import plugins

SWITCH = "PFL_ACCELERATED"
"""The environment variable that turns acceleration off if it is 0."""

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
    """Return the module ``name`` of the first plug-in that has it, or None if acceleration is off."""
    return None if why_off() else _import(name)


def offers(name: str) -> list[Any]:
    """Return what the modules ``offers`` of all plug-ins list under ``name``, such as ``TRAINING``, if it is on."""
    return [] if why_off() else [offer for plug in _available() for offer in getattr(plug.load("offers"), name, ())]


def accelerated(name: str, when: Callable[..., bool] = lambda *args: True) -> Callable[[_Function], _Function]:
    """Replace calls of a function by calls of the function with the same name in the module ``name`` of a plug-in.

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

    Times of runs leave them out. Otherwise, the method that runs first would be charged with them. If acceleration is
    off, no plug-in is read.
    """
    seconds, processor = map(sum, zip((0.0, 0.0), *_importing, strict=True))
    for plug in () if why_off() else _available():
        compiler = sys.modules.get(f"{plug.package}.compiler")
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
    plug = next((plug for plug in _available() if (plug.folder / f"{name}.py").is_file()), None)
    module = None if plug is None else plug.load(name)
    _importing.append((time.monotonic() - began, time.thread_time() - processor))
    return module


@cache
def _available() -> tuple[plugins.PlugIn, ...]:
    return tuple(plug for plug, facts in plugins.added("BACKENDS").values() if _is_installed(facts.get("needs")))


@cache
def _missing() -> str | None:
    """Return why there is no plug-in with compiled forms, or None if there is one."""
    if _available():
        return None
    needs = [str(facts["needs"]) for _, facts in plugins.added("BACKENDS").values()]
    return f"{needs[0].title()} is not installed" if needs else "no plug-in has compiled forms"


def _is_installed(package: str | None) -> bool:
    try:
        spec = importlib.util.find_spec(package) if package else None
    except ValueError:  # an import hook blocks it
        return False
    return not package or (spec is not None and spec.origin is not None)  # a folder without a module counts as absent
