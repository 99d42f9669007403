"""Compiles loops over arrays with Numba and keeps the code on disk. Everything private to Numba is used in this file.

Loops are for what takes many calls or passes over memory as operators of PyTorch. Numba compiles a function at its
first call, for the types of the arguments. A call computes on the calling thread, without Python's lock, in one order:
the same input gives the same bytes.

The code of each function, types of arguments and CPU lies in a file of its own. Numba numbers its files: of two
processes that compile a function for different types at the same time, one may later read the code of the other. It
also reads code after a change to another file from which it was compiled, as it looks at the function's own file alone.
A full disk would end a run.

``pyproject.toml`` bounds the versions of Numba: what is private may change with each. Tried with 0.68.1.
"""

from __future__ import annotations

import copy
import gc
import hashlib
import importlib
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import llvmlite.binding
import numba
from numba.core import caching, cgutils, compiler_lock, serialize, types
from numba.core.imputils import impl_ret_borrowed
from numba.core.runtime import nrt
from numba.np import linalg
from numba.np.arrayobj import populate_array
from numpy.typing import NDArray

Array = NDArray[Any]
"""an array of any type in a compiled loop"""

Arrays = tuple[Array, ...]

codegen: Any = cgutils
populate: Any = populate_array
borrowed: Any = impl_ret_borrowed
"""What ``instructions.py`` writes its functions with."""

_plain: Any = types.unliteral
_lock: Any = compiler_lock.global_compiler_lock
_dumps: Any = serialize.dumps
_function_cache: Any = caching.FunctionCache
_reference_counts: Any = nrt.rtsys

_FOLDER = Path(__file__).parent
_DIGEST = 32

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


class CodeCache(_function_cache):  # type: ignore[misc]
    """Numba's cache of one function with files of our own. Raises RuntimeError if no folder for it can be written."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        sources = _digest(_FOLDER) + _digest(Path(function.__code__.co_filename).parent)
        self._cache_file = _Files(Path(self.cache_path), self._impl.filename_base, sources)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the code for the types ``sig``, or None if it is to be compiled.

        Numba would register the types and code of all functions of NumPy first, which takes 0.2 s. Its compiler does so
        by itself. Compiled code refers to no more than what counts references to arrays.
        """
        _reference_counts.initialize(target_context)
        with _blas_unchecked():
            code = self._load_overload(sig, target_context)
            if code is None:
                importlib.import_module("numba.np.arraymath")
        return code

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write the code for the types ``sig``; without room for it the next process compiles again."""
        try:
            super().save_overload(sig, data)
        except OSError:
            self.disable()


@contextmanager
def _blas_unchecked() -> Iterator[None]:
    """Let Numba's array functions be imported without scipy.linalg, which takes 0.15 s and which no loop needs."""
    check = linalg.ensure_blas
    linalg.ensure_blas = lambda: None
    try:
        yield
    finally:
        linalg.ensure_blas = check


class _Files:
    """The files of a function, which take the place of Numba's ``IndexDataCacheFile``."""

    def __init__(self, folder: Path, name: str, sources: bytes) -> None:
        self._folder, self._name, self._sources = folder, name, sources

    def load(self, key: Any) -> Any:
        """Return the code that was saved under ``key``, or None if it is absent, damaged, or of other sources."""
        try:
            content = self._path(key).read_bytes()
        except OSError:
            return None
        if content[:_DIGEST] != hashlib.sha256(content[_DIGEST:]).digest():
            return None
        origin, code = pickle.loads(content[_DIGEST:])
        return code if origin == self._origin(key) else None

    def save(self, key: Any, code: Any) -> None:
        """Replace the code under ``key``. Raises OSError."""
        content = _dumps((self._origin(key), code))
        path = self._path(key)
        unfinished = path.with_suffix(f".{uuid4().hex}")
        try:
            unfinished.write_bytes(hashlib.sha256(content).digest() + content)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)

    def _path(self, key: Any) -> Path:
        return self._folder / f"{self._name}.{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.nbc"

    def _origin(self, key: Any) -> tuple[str, bytes, str]:
        """Return what the code follows from: Numba's version, our sources, and types, CPU and bytes of the function."""
        return numba.__version__, self._sources, repr(key)


@cache
def _digest(folder: Path) -> bytes:
    """Return a hash of the sources in a folder: a function is compiled together with those that it calls."""
    total = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        total.update(path.read_bytes())
    return total.digest()
