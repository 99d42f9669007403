"""Compiles loops over arrays: for what takes many calls or passes over memory as operators of PyTorch.

Numba compiles at the first call, for the type of the numbers, and ``code_cache.py`` keeps the result on disk. A call
computes on the calling thread, without Python's lock, in one order: the same input gives the same bytes.
"""

from __future__ import annotations

import copy
import gc
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import llvmlite.binding
import numba
from numba.core import compiler_lock, types

from pflcli.accelerated.code_cache import CodeCache

_plain: Any = types.unliteral
_lock: Any = compiler_lock.global_compiler_lock

_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "no_cfunc_wrapper": True,  # which only C would call
    "error_model": "numpy",
    "fastmath": {"contract", "nsz", "reassoc"},
}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile at the first call, or read the result of an earlier process if there is a folder for it.

    Compiled loops call ``function`` where it lies. By itself Numba would compile it again within each of them, and for
    each constant that they call it with: most of the time that the loops of a network take to compile.
    """
    result: Any = numba.njit(**_OPTIONS)(function)
    with suppress(RuntimeError):
        result._cache = CodeCache(function)
    template, add_overload, compile_form = result.get_call_template, result.add_overload, result.compile

    def get_call_template(arguments: Any, keywords: Any) -> Any:
        return template([_plain(kind) for kind in arguments], {name: _plain(kind) for name, kind in keywords.items()})

    def add(form: Any) -> None:
        add_overload(form)
        _call_where_it_lies(function, form)

    def compile_sparing(types_of_arguments: Any) -> Any:
        with _old_objects_spared():
            return compile_form(types_of_arguments)

    result.get_call_template, result.add_overload, result.compile = get_call_template, add, compile_sparing
    called: Callable[..., Any] = result
    return called


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile within each loop that calls it: for a few operations on a number, which loops take as vectors."""
    result: Any = numba.njit(**_OPTIONS)(function)
    called: Callable[..., Any] = result
    return called


@contextmanager
def _old_objects_spared() -> Iterator[None]:
    """Let garbage be collected among new objects alone: all others, looked through again and again, took a seventh."""
    with _lock:  # in turn, as each thread puts back what it found
        thresholds = gc.get_threshold()
        gc.set_threshold(*thresholds[:2], 1 << 30)
        try:
            yield
        finally:
            gc.set_threshold(*thresholds)


def _call_where_it_lies(function: Callable[..., Any], form: Any) -> None:
    """Let loops that are compiled from now on call a compiled form of a function by a name that all processes share."""
    if not hasattr(form.library, "_reload_init"):
        return  # an older version of Numba, by which a loop that is read cannot read others
    context, arguments = form.target_context, form.signature.args
    name = f"{function.__module__}.{function.__name__}{arguments}"
    llvmlite.binding.add_symbol(name, form.library.get_pointer_to_function(form.fndesc.llvm_func_name))
    description = copy.copy(form.fndesc)
    description.mangled_name = name
    # In place of the function's code, callers are linked with nothing. When they are read, it must be in memory.
    nothing = context.codegen().create_library(name)
    nothing._shared_module, nothing._finalized = nothing._final_module, True
    nothing._reload_init.add(partial(_read, function.__module__, function.__name__, arguments))
    context.remove_user_function(form.entry_point)
    context.insert_user_function(form.entry_point, description, [nothing])


def _read(module: str, name: str, arguments: tuple[Any, ...]) -> None:
    """Compile a form of a function, or read it from the cache, before a loop that calls it."""
    getattr(importlib.import_module(module), name).compile(arguments)
