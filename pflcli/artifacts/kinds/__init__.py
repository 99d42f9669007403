"""Kinds of artifacts, one file each, here or in a plug-in.

The docstring of a file describes the content, and ``Kind`` is its interface.
"""

from __future__ import annotations

import ast
import importlib
from abc import abstractmethod
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pflcli.core import plugins, registry
from pflcli.core.errors import InputError, UnsuitedError
from pflcli.core.tasks import CLASSES, Labels
from pflcli.core.wording import counted

if TYPE_CHECKING:
    from pflcli.artifacts.interface import Artifact, Manifest

LINEAGE = ("partition", "backbone", "embeddings", "datastore")
"""The kinds of which each is made from the one before."""


class Kind(Protocol):
    """A file of this folder, or of a plug-in; all names are required."""

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
    module = importlib.import_module(_read_kinds()[name][0])
    kind: Kind = registry.complete(module, f"{module.__file__}: artifact kind {name}", Kind)
    return kind


@cache
def schemas() -> dict[str, int]:
    """Return the schema of each kind by name, without importing its file."""
    return {name: constants["SCHEMA"] for name, (_, constants) in _read_kinds().items()}


def read_labels(manifest: Manifest, outputs: int) -> Labels:
    """Return what the labels of an artifact's samples are; for classes, models have so many outputs."""
    task = manifest.summary.get("task")
    return Labels(task["fields"]["outputs"], **task) if task else Labels(outputs)


def require_classes(manifest: Manifest, command: str) -> None:
    """Raise UnsuitedError if a command reads classes and the labels of an artifact are something else."""
    if (labels := read_labels(manifest, 0)).kind != CLASSES:
        raise UnsuitedError(f"{command} reads classes, and the task is {labels.kind}")


def made_by(name: str) -> str:
    """Return the command that makes an artifact of this kind."""
    command: str = _read_kinds()[name][1]["MADE_BY"]
    return command


@cache
def _read_kinds() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the module and the constants of each kind, by name."""
    files = {file.stem: (f"{__name__}.{file.stem}", file) for file in Path(__file__).parent.glob("[!_]*.py")}
    read = {name: (module, _read_constants(file)) for name, (module, file) in files.items()}
    for name, (plug, facts) in plugins.added("KINDS").items():
        if "module" not in facts:
            continue
        if name in files:
            plugins.leave_out(f"kind {name}", plug, "pfl has a kind of this name")
            continue
        try:
            file = plug.folder.joinpath(*facts["module"].split(".")).with_suffix(".py")
            read[name] = (f"{plug.package}.{facts['module']}", _read_constants(file))
        except Exception as error:  # whatever a file of a stranger contains
            plugins.leave_out(f"kind {name}", plug, error)
    return dict(sorted(read.items()))


def _read_constants(file: Path) -> dict[str, Any]:
    constants = registry.constants(ast.parse(file.read_text(encoding="utf-8")))
    if lacking := [name for name in ("SCHEMA", "MADE_BY") if name not in constants]:
        raise InputError(f"{file} has no {lacking[0]} that is a literal")
    return constants


def add_article(name: str) -> str:
    """Return the name of a kind with its article, such as ``an audit``, unless it is a plural."""
    return name if name.endswith("s") else f"an {name}" if name[0] in "aeiou" else f"a {name}"


def required_kinds(needs: tuple[str, ...]) -> set[str]:
    """Return the kinds in ``needs`` and those they are made from: a datastore needs embeddings and a backbone."""
    deepest = max((LINEAGE.index(need) for need in needs), default=0)
    return set(LINEAGE[1 : deepest + 1])


def missing_input_error(method: str, need: str, source: Artifact) -> InputError:
    """Return the error for a ``source`` without the kind that a method needs, with the commands that make it."""
    path, commands = source.path, []
    begin = LINEAGE.index(source.kind)
    for before, kind in pairwise(LINEAGE[begin : LINEAGE.index(need) + 1]):
        target = source.path.parent / kind
        paths = {before.upper(): str(path), "DIR": str(target)}
        commands.append(" ".join(paths.get(word, word) for word in made_by(kind).split()))
        path = target
    message = f"{method} needs {add_article(need)}; {source.path} is {add_article(source.kind)}"
    return InputError(message, " && ".join(commands))


def describe_count(number: Any, noun: str) -> str:
    """Return text such as ``8 clients``, empty if the number is unknown, as in a manifest of another version."""
    return counted(number, noun) if isinstance(number, int) else ""


def describe_percent(label: str, fraction: Any) -> str:
    """Return text such as ``accuracy 91.4 %``, empty if the fraction is unknown."""
    return f"{label} {100 * fraction:.1f} %" if isinstance(fraction, float) else ""


def describe_name(value: Any, label: str = "") -> str:
    """Return a label and a name, such as ``model mlp``, empty if the name is unknown."""
    return f"{label} {value}".strip() if isinstance(value, str) else ""
