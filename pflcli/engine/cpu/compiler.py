"""Compiles loops over arrays: for what takes many calls or passes over memory as operators of PyTorch.

Numba compiles at the first call, for the type of the numbers, and caches the result on disk. A call computes on the
calling thread, without Python's lock, in one order: the same input gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"contract", "nsz", "reassoc"}}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile at the first call, or read the result of an earlier process if Numba has a folder for its cache."""
    compiler: Any = numba.njit
    try:
        result: Callable[..., Any] = compiler(cache=True, **_OPTIONS)(function)
    except RuntimeError:
        result = compiler(**_OPTIONS)(function)
    return result
