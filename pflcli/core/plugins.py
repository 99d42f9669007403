"""What plug-ins add: the folders of ``pflcli/plugins``, and installed packages.

A plug-in is a folder with a ``plugin.py``, which has constants alone and is read without importing it. An installed
package names that module by an entry point of the group ``pflcli.plugins``. The values of its constants are mappings by
name; a text such as ``show:table`` in them is an object in a module of the folder.

``COMMANDS``
    commands of ``pfl``, each with the class of its ``options`` and its ``function``; ``panel`` and ``after`` say where
    the help lists it, ``terminal`` how its result is printed (``cli.from_options.Terminal``). ``site check`` is the
    command ``check`` in the group ``site``
``GROUPS``
    the help of groups of commands
``KINDS``
    kinds of artifacts, each with the ``module`` that describes its files (``artifacts.kinds.Kind``), and functions of
    an artifact: ``print`` prints its table, ``facts`` returns what ``pfl show --json`` adds, ``section`` what a page
    shows; and of a file in TOML: ``like`` returns what ``pfl import --like`` takes over from it; ``partition`` makes
    what ``pfl partition --like`` asks for
``SCORES``
    scores of predictions beside those of the table, each by the name of the option of ``evaluate`` and ``compare`` that
    asks for them (``evaluation/added_scores.py``): functions that ``parse`` its value, ``require`` that it suits a
    partition, and ``summarize`` scored predictions; the ``fields`` that these add to ``metrics.json``; and functions of
    stored metrics that return ``tables``, ``notes``, and the ``numbers`` of CSV files
``STEPS``
    what ``pfl import`` makes of checked samples before it stores them, by the name of the option that asks for it: a
    function ``apply`` of the samples (``data.preparation.cleaning.CleanSamples``), their name, the options that are
    given, and whether it may ask for them
``FORMATS``
    formats that ``pfl import`` reads where the user names them, as in ``leaf:FOLDER``, each with its ``reader``
    (``data.preparation.user_data.Format``), the ``tool`` that wrote it, what it is called (``title``), the ``words``
    that a user types, the ``options`` that apply to it, and whether it ``deals`` samples to clients and splits
``BACKENDS``
    compiled forms of what the engine computes, each with the package that it ``needs``; see ``engine/backend.py``
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from pflcli.core import registry
from pflcli.core.errors import InputError

GROUP = "pflcli.plugins"
"""The package of the plug-ins of pfl, and the group of entry points of others."""
_PARTS = {
    "audits": ("audit", "leakage"),
    "checks": ("check", "new"),
    "claims": ("verdicts", "verify"),
    "demo": ("demo",),
    "export": ("export",),
    "formats": ("hf", "leaf", "tff"),
    "groups": ("group_scores",),
    "knn_tools": ("sweep", "update-datastore"),
    "page": ("report",),
    "referee": ("import-predictions",),
    "replay": ("replay",),
    "series": ("window",),
    "sites": ("federation", "site"),
    "tracking": ("track",),
}
"""The plug-ins of pfl, and what each adds that a user may name, so that one that is missing can be named."""
SCORE_OPTIONS = ("group_scores",)
"""The options of ``evaluate`` and ``compare`` whose scores a plug-in computes: the names of ``SCORES``."""
_NEEDED = {
    "COMMANDS": ("panel", "options", "function"),
    "GROUPS": None,
    "KINDS": (),
    "SCORES": ("parse", "require", "summarize", "fields", "tables", "notes", "numbers"),
    "STEPS": ("apply",),
    "FORMATS": ("reader", "tool", "title", "words"),
    "BACKENDS": (),
}
"""The facts that each name of a constant needs; the values of ``GROUPS`` are text."""


@dataclass(frozen=True)
class PlugIn:
    """A plug-in: its package, the folder of its files, and the constants of its ``plugin.py``."""

    package: str
    folder: Path
    constants: Mapping[str, Any]

    def load(self, place: str) -> Any:
        """Return the object ``module:name`` of the plug-in, or its module if no name is given.

        Raises InputError if there is none.
        """
        module, _, name = place.partition(":")
        try:
            imported = importlib.import_module(f"{self.package}.{module}")
            return getattr(imported, name) if name else imported
        except (ImportError, AttributeError) as error:
            raise InputError(f"plug-in {self.package} names {place}, which cannot be imported: {error}") from error


problems: list[str] = []
"""What was left out of plug-ins, in a line each: one that is broken must not keep pfl from working."""


@functools.cache
def found() -> tuple[PlugIn, ...]:
    """Return all plug-ins: those of pfl by name, then those of packages; broken ones are among the ``problems``."""
    plugs = []
    for package, file in [
        *((f"{GROUP}.{file.parent.name}", file) for file in sorted(registry.ROOT.glob("plugins/*/plugin.py"))),
        *((point.module, None) for point in entry_points(group=GROUP)),
    ]:
        try:
            plugs.append(_read(package, file) if file else _read_module(package))
        except Exception as error:  # whatever a file of a stranger contains
            problems.append(f"plug-in {package} is left out: {error}")
    return tuple(plugs)


def _read_module(module: str) -> PlugIn:
    """Read the ``plugin.py`` of a package by the name of the module, of which nothing is imported."""
    top, *below = module.split(".")
    spec = importlib.util.find_spec(top) if below else None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (file := Path(folder, *below).with_suffix(".py")).is_file():
            return _read(module.rpartition(".")[0], file)
    raise InputError(f"there is no module {module} in a package")


def _read(package: str, file: Path) -> PlugIn:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    constants = registry.constants(tree)
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        name = target.id if isinstance(target, ast.Name) else ""
        if name in _NEEDED and name not in constants:
            raise InputError(f"{file}, line {node.lineno}: {name} is not a literal, as in {name} = {{...}}")
    for name, needed in _NEEDED.items():
        if not isinstance(constants.get(name, {}), dict):
            raise InputError(f"{file}: {name} is not a mapping by name")
        for key, facts in constants.get(name, {}).items():
            if not isinstance(facts, str if needed is None else dict):
                raise InputError(f"{file}: {name}[{key!r}] is not {'text' if needed is None else 'a mapping'}")
            if name == "SCORES" and key not in SCORE_OPTIONS:
                raise InputError(f"{file}: {name}[{key!r}] is none of the options {', '.join(SCORE_OPTIONS)}")
            if lacking := [fact for fact in needed or () if fact not in facts]:
                raise InputError(f"{file}: {name}[{key!r}] lacks {lacking[0]}")
    return PlugIn(package, file.parent, constants)


def leave_out(what: str, plug: PlugIn, error: Exception | str) -> None:
    """Note that something of a plug-in is left out, and why."""
    reason = error if isinstance(error, str) else f"{type(error).__name__}: {getattr(error, 'message', error)}"
    line = f"{what} of plug-in {plug.package} is left out: {reason}"
    if line not in problems:
        problems.append(line)


@functools.cache
def added(what: str) -> Mapping[str, tuple[PlugIn, Any]]:
    """Return what all plug-ins add under one constant, such as ``COMMANDS``, by name; the first of a name counts."""
    added: dict[str, tuple[PlugIn, Any]] = {}
    for plug in found():
        for name, value in plug.constants.get(what, {}).items():
            if name in added:
                leave_out(f"'{name}' of {what}", plug, f"it is that of {added[name][0].package}")
            else:
                added[name] = (plug, value)
    return added


def facts_of(what: str, name: str) -> Mapping[str, Any]:
    """Return the facts about one name that a plug-in adds; empty if no plug-in adds it."""
    facts: Mapping[str, Any] = added(what)[name][1] if name in added(what) else {}
    return facts


def load(what: str, name: str, fact: str) -> Any:
    """Return the object that a plug-in names by a fact about one of its names, such as the ``function`` of a command.

    None if no plug-in adds the name, or its facts do not say.
    """
    place = facts_of(what, name).get(fact)
    return None if place is None else added(what)[name][0].load(place)


def why_missing(name: str) -> str:
    """Return that a command, a kind or a format is that of a plug-in of pfl that is not installed; else empty."""
    for plug, names in _PARTS.items():
        if name in names and not registry.ROOT.joinpath("plugins", plug, "plugin.py").is_file():
            return f"it is part of the plug-in {plug}, which is not installed"
    return ""
