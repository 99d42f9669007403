"""Keeps compiled loops on disk, in a file per function, types of arguments and CPU.

Numba numbers its files: of two processes that compile a function for different types at the same time, one may later
read the code of the other. It also reads code after a change to another file from which it was compiled, as it looks
at the function's own file alone. A full disk ends a run.
"""

from __future__ import annotations

import hashlib
import importlib
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import numba
from numba.core import caching, serialize
from numba.core.runtime import nrt
from numba.np import linalg

_dumps: Any = serialize.dumps
_function_cache: Any = caching.FunctionCache
_reference_counts: Any = nrt.rtsys

_FOLDER = Path(__file__).parent
_DIGEST = 32


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
