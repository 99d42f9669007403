"""Import files, and check what they define by the contract of their group.

The contract of a group defines what a file must contain, and the defaults: ``methods.Method``, ``schemes.Scheme``,
``datasets.Dataset``, ``models.Model``.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import reprlib
from dataclasses import is_dataclass
from types import FunctionType, ModuleType
from typing import Any

from pflcli.core.errors import InputError, UsageError
from pflcli.core.registry.files import GROUPS, built_in, installed, package, path, used_files
from pflcli.core.registry.users_files import place_of_failure


def load(group: str, name: str, contract: type[Any]) -> Any:
    """Import the file of ``name``, and return it with the defaults of its contract.

    ``contract`` is a Protocol: its abstract methods and the annotations without a value must be in the file, the others
    may be; the returned object has the type of the contract. Raises UsageError with the nearest name if there is no
    such file, InputError if the file breaks the contract.
    """
    return complete(import_file(group, name), f"{path(group, name)}: {GROUPS[group]} {name}", contract)


def import_file(group: str, name: str) -> ModuleType:
    """Import the file of ``name``; raises UsageError if there is none, InputError if it cannot be imported."""
    file, family = path(group, name), name.partition(":")[0]
    module = f"pflcli.{package(group)}.{file.stem}"
    if "." in family:
        module = family
    elif family not in built_in(group) and f"{group}/{family}" not in used_files():
        module = installed(group)[family].module
    try:
        return importlib.import_module(module)
    except Exception as error:
        place = place_of_failure(error)
        if not place:
            raise
        message = error.msg if isinstance(error, SyntaxError) else error
        raise InputError(f"{place}: {type(error).__name__}: {message}") from error


def complete(module: object, origin: str, contract: type) -> Any:
    """Return a module or object with the defaults of the contract; raises InputError if it breaks the contract.

    ``origin`` names it at the start of the error.
    """
    known = _read_members(contract)
    own_members = {key: getattr(module, key) for key in known if hasattr(module, key)}
    for key in sorted(known - own_members.keys()):
        own = [other for other in _list_own_names(module) if other not in known and other.isupper() == key.isupper()]
        near = difflib.get_close_matches(key, own, n=1, cutoff=0.75)
        if near and not near[0].startswith(f"{key}_"):
            raise InputError(f"{origin} has '{near[0]}', which is not used", f"did you mean '{key}'?")
        if key in getattr(contract, "__abstractmethods__", ()) or not hasattr(contract, key):
            raise InputError(
                f"{origin} has no {key}", f"what it must have: {contract.__name__} in {contract.__module__}"
            )
    for key, value in own_members.items():
        if key == "Config" and value is not None and not (isinstance(value, type) and is_dataclass(value)):
            raise InputError(f"{origin}: Config is no dataclass", "@dataclass(frozen=True) above class Config")
        if isinstance(value, FunctionType):
            _require_same_parameters(value, getattr(contract, key), f"{origin}: {key}")
    body = {key: staticmethod(value) if callable(value) else value for key, value in own_members.items()}
    return type(contract.__name__, (contract,), body)()


def complete_object(group: str, given: Any, contract: type) -> tuple[str, Any]:
    """Return the name of a module, a class or an object, and what ``complete`` makes of it.

    Raises UsageError for a value that is none of them, such as a number.
    """
    kind = GROUPS[group]
    if given is None or isinstance(given, int | float | list | tuple | set | dict):
        raise UsageError(
            f"{reprlib.repr(given)} is no {kind}: give a name, a file, a module, a class or an object",
            f"pfl list {group}",
        )
    made = given() if isinstance(given, type) else given
    name = getattr(made, "__name__", type(made).__name__).rpartition(".")[2].replace("_", "-")
    return name, complete(made, f"{kind} {name}", contract)


def find_longer_name(module: ModuleType, contract: type) -> tuple[str, str] | None:
    """Return a name of a module that continues one of the contract that it lacks, such as GRID_T and GRID."""
    own = _list_own_names(module)
    missing = sorted(_read_members(contract) - set(own))
    return next(((name, key) for key in missing for name in own if name.startswith(f"{key}_")), None)


@functools.cache
def _read_members(contract: type) -> frozenset[str]:
    """Return the names of what a file has to or may have by the contract."""
    annotated, defined = inspect.get_annotations(contract), (key for key in dir(contract) if not key.startswith("_"))
    return frozenset({*annotated, *defined})


def _list_own_names(module: object) -> list[str]:
    """Return the public names that a module or object defines itself."""
    home = getattr(module, "__name__", type(module).__module__)
    return [
        name
        for name in dir(module)
        if not name.startswith("_") and getattr(getattr(module, name), "__module__", home) == home
    ]


def _require_same_parameters(written: FunctionType, contract: FunctionType, origin: str) -> None:
    """Raise InputError unless a function has the parameters of the contract, with the same names."""
    has, needs = (inspect.signature(function).parameters for function in (written, contract))
    empty = inspect.Parameter.empty
    missing = [
        name for name, parameter in needs.items() if name != "self" and parameter.default is empty and name not in has
    ]
    unknown = [name for name, parameter in has.items() if parameter.default is empty and name not in needs]
    if missing or unknown:
        wrong = f"has no parameter '{missing[0]}'" if missing else f"has the unknown parameter '{unknown[0]}'"
        raise InputError(f"{origin} {wrong}", f"its parameters: {', '.join(name for name in needs if name != 'self')}")
