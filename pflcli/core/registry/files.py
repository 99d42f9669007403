"""Which names there are in each group, and the file of each: built in, of an installed package, or a user's own."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pflcli
from pflcli.core.errors import InputError, UsageError, closest

GROUPS = {
    "methods": "method",
    "datasets": "dataset",
    "models": "model",
    "schemes": "scheme",
    "uploads": "upload step",
    "aggregators": "aggregator",
    "tasks": "task",
}
KINDS = {group.removesuffix("s"): group for group in GROUPS}
"""The groups by the word for one file of them, such as ``method``."""
ROOT = Path(pflcli.__file__).parent
"""The folder of the package."""
_PARENTS = {
    "datasets": "data",
    "schemes": "core",
    "uploads": "core.federation",
    "aggregators": "core.federation",
    "tasks": "core.engine",
}
"""The parent packages of groups that are not at the top level."""


def folder(group: str) -> Path:
    """Return the folder with the files of ``group``."""
    return ROOT.joinpath(*package(group).split("."))


def package(group: str) -> str:
    """Return the package of ``group`` below ``pflcli``, such as ``core.schemes``."""
    return f"{_PARENTS[group]}.{group}" if group in _PARENTS else group


def names(group: str) -> list[str]:
    """Return the sorted names in ``group``, as typed on the command line: built-in files and installed packages'."""
    return sorted({*built_in(group), *installed(group)})


def built_in(group: str) -> frozenset[str]:
    """Return the names of the files of ``group`` in this package, in kebab case."""
    return _names_in(folder(group))


@functools.cache
def _names_in(folder: Path) -> frozenset[str]:
    stems = (file.stem for file in folder.glob("*.py") if not file.stem.startswith("_"))
    return frozenset(stem.replace("_", "-") for stem in stems)


@functools.cache
def installed(group: str) -> dict[str, EntryPoint]:
    """Return what installed packages offer by entry points ``pflcli.methods`` and so on: modules by name."""
    return {each.name: each for each in entry_points(group=f"pflcli.{group}") if each.name not in built_in(group)}


USED = "PFL_USED_FILES"
"""The environment variable that contains ``used_files`` as JSON, so that worker processes have them."""


def used_files() -> dict[str, Path]:
    """Return the files that users have named for this command, by ``group/name``, such as ``methods/mine``.

    They are the files at a path, and the modules that contain a network, such as ``models/package.module``. Nothing in
    an artifact adds to them: what an artifact names is imported only if the user has named it too.
    """
    used = os.environ.get(USED)
    return {key: Path(file) for key, file in json.loads(used).items()} if used else {}


def origin(group: str, name: str) -> str:
    """Return where a name comes from: ``pfl``, an installed package, or a user's file."""
    used = used_files().get(f"{group}/{name}")
    if used is not None:
        return str(used)
    point = None if name in built_in(group) else installed(group).get(name)
    return "pfl" if point is None or point.dist is None else point.dist.name


def exists(group: str, name: str) -> bool:
    """Return whether there is a file of this name, built in or used."""
    return name in built_in(group) or is_foreign(group, name)


def is_foreign(group: str, name: str) -> bool:
    """Return whether a name is that of a user's file, or of a module of an installed package."""
    return f"{group}/{name}" in used_files() or (name not in built_in(group) and name in installed(group))


def path(group: str, name: str) -> Path:
    """Return the file of ``name``; raises UsageError with the nearest name if there is none."""
    if group not in GROUPS:
        raise UsageError(f"unknown kind '{group}'", closest(group, GROUPS))
    file = name.partition(":")[0]  # `torchvision:resnet50` is one of many that a file builds
    used = used_files().get(f"{group}/{file}")
    if used is not None:
        return used
    if file in built_in(group):
        return folder(group) / f"{file.replace('-', '_')}.py"
    if file in installed(group):
        return path_of_module(installed(group)[file].module, f"{GROUPS[group]} '{file}'")
    raise UsageError(f"unknown {GROUPS[group]} '{name}'", closest(name, names(group)), f"pfl list {group}")


def path_of_module(module: str, owner: str) -> Path:
    """Return the file of an installed module; raises InputError, which begins with ``owner``, if there is none."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        spec = None
    except Exception as error:  # whatever the package raises when it is imported
        raise InputError(f"{owner}: {module}: {type(error).__name__}: {error}") from error
    if spec is None or spec.origin is None:
        raise InputError(f"{owner}: there is no module {module}")
    return Path(spec.origin)
