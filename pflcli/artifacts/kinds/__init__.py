"""Kinds of artifacts, one file each; its docstring describes the content, and ``Kind`` is its interface."""

from __future__ import annotations

import ast
import importlib
from abc import abstractmethod
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pflcli import registry

if TYPE_CHECKING:
    from pflcli.artifacts.manifest import Manifest
    from pflcli.artifacts.reader import Artifact


class Kind(Protocol):
    """A file of this folder; all names are required."""

    SCHEMA: int
    """the version of its files that this code writes; it reads every version up to it"""
    MADE_BY: str
    """the command that makes such an artifact"""

    @abstractmethod
    def check(self, artifact: Artifact) -> object:
        """Read every file of an artifact; raises InputError, which names the file, if one is invalid."""

    @abstractmethod
    def describe(self, manifest: Manifest) -> list[str]:
        """Return a few facts that distinguish artifacts of this kind, as text; unknown facts are empty."""


def load(name: str) -> Kind:
    """Return the kind with this name, which must exist; raises InputError if its file is incomplete."""
    module = importlib.import_module(f"{__name__}.{name}")
    kind: Kind = registry.complete(module, f"{module.__file__}: artifact kind {name}", Kind)
    return kind


@cache
def schemas() -> dict[str, int]:
    """Return the schema of each kind by name, without importing its file."""
    return {name: constants["SCHEMA"] for name, constants in _constants().items()}


def made_by(name: str) -> str:
    """Return the command that makes an artifact of this kind."""
    command: str = _constants()[name]["MADE_BY"]
    return command


@cache
def _constants() -> dict[str, dict[str, Any]]:
    files = sorted(Path(__file__).parent.glob("[!_]*.py"))
    return {file.stem: registry.constants(ast.parse(file.read_text(encoding="utf-8"))) for file in files}
