"""Import one module of pflcli from other source text than that on disk, in this process and in those that it starts.

The files on disk stay as they are, so that hashes of sources do not change: a test that compares them would otherwise
notice every mutant. Compiled loops that contain mutated code are compiled again and not stored.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

VARIABLE = "PFL_MUTANT"
"""The environment variable that names the file which describes the mutant, for processes that a test starts."""


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module from source text."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> Any:
        return compile(self._source, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the mutated module."""

    def __init__(self, name: str, path: str, source: str) -> None:
        self._name, self._path, self._source = name, path, source

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != self._name:
            return None
        folders = [str(Path(self._path).parent)] if Path(self._path).name == "__init__.py" else None
        loader = _Loader(fullname, self._path, self._source)
        return importlib.util.spec_from_file_location(
            fullname, self._path, loader=loader, submodule_search_locations=folders
        )


def install(name: str, path: str, source: str, recompiled: Collection[str]) -> None:
    """Import the module ``name`` from ``source`` from now on, and compile the functions ``recompiled`` again."""
    assert name not in sys.modules, name
    sys.meta_path.insert(0, _Finder(name, path, source))
    if recompiled:
        _compile_again(frozenset(recompiled))


def _compile_again(names: Collection[str]) -> None:
    """Let Numba neither read nor store the compiled code of the functions ``names``, and of those in tests."""
    from numba.core import caching

    kind: Any = caching.Cache
    load, save = kind._load_overload, kind._save_overload

    def is_mutated(function: Any) -> bool:
        return function.__name__ in names or not function.__module__.startswith("pflcli.")

    def load_others(self: Any, *arguments: Any) -> Any:
        return None if is_mutated(self._py_func) else load(self, *arguments)

    def save_others(self: Any, *arguments: Any) -> None:
        if not is_mutated(self._py_func):
            save(self, *arguments)

    kind._load_overload, kind._save_overload = load_others, save_others


def install_from_environment() -> None:
    """Install the mutant that a parent process has described."""
    if VARIABLE in os.environ:
        install(**json.loads(Path(os.environ[VARIABLE]).read_text()))
