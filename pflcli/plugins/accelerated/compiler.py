"""Compiles loops over arrays with Numba and stores the code on disk. Only this file uses private parts of Numba.

Loops serve computations that would take many calls, or many passes over memory, with operators of PyTorch. Numba
compiles a function at its first call, for the types of the arguments. A call computes on the calling thread, without
Python's lock, in a fixed order, so that the same input gives the same bytes.

The cache has one file for each function, CPU and types of arguments. Numba's own cache has three faults. It numbers its
files, so that a process may read the code of another one that compiled the same function for other types at the same
time. It checks changes only in the function's own file, not in the functions that it calls. And a full disk ends a run.

``pyproject.toml`` limits the versions of Numba, whose private parts may change with each one. Tested with 0.68.1.
"""

from __future__ import annotations

import copy
import gc
import hashlib
import importlib
import io
import pickle
import time
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
"""An array of any type in a compiled loop."""

Arrays = tuple[Array, ...]

codegen: Any = cgutils
populate: Any = populate_array
borrowed: Any = impl_ret_borrowed
"""Parts of Numba by which ``instructions.py`` generates code."""

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
    """Compile ``function`` at its first call, or load the code that an earlier process has stored.

    Other compiled functions call its code. By default Numba would compile it again within each of its callers, and for
    each constant argument, which would take most of the time of compiling the loops of a network.
    """
    result: Any = numba.njit(**_OPTIONS)(function)
    with suppress(RuntimeError):
        result._cache = CodeCache(function)
    template, add_overload, compile_form = result.get_call_template, result.add_overload, result.compile

    def get_call_template(arguments: Any, keywords: Any) -> Any:
        return template([_plain(kind) for kind in arguments], {name: _plain(kind) for name, kind in keywords.items()})

    def add(form: Any) -> None:
        add_overload(form)
        _share_code(function, form)

    def compile_fast(types_of_arguments: Any) -> Any:
        with _collecting_new_garbage_only(), spent.measured():
            return compile_form(types_of_arguments)

    result.get_call_template, result.add_overload, result.compile = get_call_template, add, compile_fast
    called: Callable[..., Any] = result
    return called


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile ``function`` within each loop that calls it, which may then apply its operations to vectors."""
    result: Any = numba.njit(**_OPTIONS)(function)
    called: Callable[..., Any] = result
    return called


class Stopwatch:
    """The time that this process has spent on compiling functions, or on loading their code."""

    def __init__(self) -> None:
        self.seconds = self.processor_seconds = 0.0
        self._depth = 0

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Add the time of the block. Compiling a function compiles those that it calls, which are counted once."""
        began, processor = time.monotonic(), time.thread_time()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self.seconds += time.monotonic() - began
                self.processor_seconds += time.thread_time() - processor


spent = Stopwatch()


@contextmanager
def _collecting_new_garbage_only() -> Iterator[None]:
    """Collect garbage only among new objects: searching all others repeatedly took a seventh of the time to compile."""
    with _lock:  # one thread at a time, because each one restores the thresholds
        thresholds = gc.get_threshold()
        gc.set_threshold(*thresholds[:2], 1 << 30)
        try:
            yield
        finally:
            gc.set_threshold(*thresholds)


def _share_code(function: Callable[..., Any], form: Any) -> None:
    """Let functions that are compiled later call this code by a name that is the same in all processes."""
    if not hasattr(form.library, "_reload_init"):
        return  # an older version of Numba, in which loading a function cannot load the functions that it calls
    context, arguments = form.target_context, form.signature.args
    name = f"{function.__module__}.{function.__name__}{arguments}"
    llvmlite.binding.add_symbol(name, form.library.get_pointer_to_function(form.fndesc.llvm_func_name))
    description = copy.copy(form.fndesc)
    description.mangled_name = name
    # Callers are linked with an empty library instead of the code, which must be in memory when they are loaded.
    empty = context.codegen().create_library(name)
    empty._shared_module, empty._finalized = empty._final_module, True
    empty._reload_init.add(partial(_read, function.__module__, function.__name__, arguments))
    context.remove_user_function(form.entry_point)
    context.insert_user_function(form.entry_point, description, [empty])


def _read(module: str, name: str, arguments: tuple[Any, ...]) -> None:
    """Compile a function for some types, or load it from the cache, before a function that calls it."""
    getattr(importlib.import_module(module), name).compile(arguments)


class CodeCache(_function_cache):  # type: ignore[misc]
    """Numba's cache of one function, with other files. Raises RuntimeError if no folder for them is writable."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        sources = _digest(_FOLDER) + _digest(Path(function.__code__.co_filename).parent)
        self._cache_file = _Files(Path(self.cache_path), self._impl.filename_base, sources)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the code for the types ``sig``, or None if it must be compiled.

        Numba's own method first registers all functions of NumPy, which takes 0.2 s. Compiled code only needs the
        reference counts of arrays, and the compiler registers the functions itself.
        """
        _reference_counts.initialize(target_context)
        with _skipping_blas_check():
            code = self._load_overload(sig, target_context)
            if code is None:
                importlib.import_module("numba.np.arraymath")
        return code

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write the code for the types ``sig``. If the disk is full, the next process compiles again."""
        try:
            super().save_overload(sig, data)
        except OSError:
            self.disable()


@contextmanager
def _skipping_blas_check() -> Iterator[None]:
    """Import Numba's array functions without scipy.linalg, which takes 0.15 s to import and which no loop needs."""
    check = linalg.ensure_blas
    linalg.ensure_blas = lambda: None
    try:
        yield
    finally:
        linalg.ensure_blas = check


class _Files:
    """The files of one function: a replacement of Numba's ``IndexDataCacheFile``."""

    def __init__(self, folder: Path, name: str, sources: bytes) -> None:
        self._folder, self._name, self._sources = folder, name, sources

    def load(self, key: Any) -> Any:
        """Return the code saved under ``key``, or None if it is missing, damaged, or compiled from other sources."""
        try:
            content = self._path(key).read_bytes()
        except OSError:
            return None
        if content[:_DIGEST] != hashlib.sha256(content[_DIGEST:]).digest():
            return None
        stream = io.BytesIO(content[_DIGEST:])
        origin = pickle.load(stream)
        # Code compiled from other sources may refer to functions that no longer exist.
        return pickle.load(stream) if origin == self._origin(key) else None

    def save(self, key: Any, code: Any) -> None:
        """Replace the code under ``key``. Raises OSError."""
        content = _dumps(self._origin(key)) + _dumps(code)
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
        """Return what determines the code: Numba's version, our sources, and the function's types, CPU and bytecode."""
        return numba.__version__, self._sources, repr(key)


@cache
def _digest(folder: Path) -> bytes:
    """Return a hash of all sources in a folder, because code also depends on the functions that it calls."""
    total = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        total.update(path.read_bytes())
    return total.digest()
