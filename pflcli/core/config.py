"""Options of a method, scheme or model: frozen dataclasses, built from ``--set key=value`` and TOML."""

from __future__ import annotations

import dataclasses
import functools
import tomllib
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pflcli.core import registry
from pflcli.core.errors import InputError, UsageError, closest
from pflcli.core.wording import as_typed

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_P = ParamSpec("_P")
_T = TypeVar("_T")


def cached(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Cache what a function returns for a class; mypy does not take classes for arguments of ``functools.cache``."""
    return typing.cast("Callable[_P, _T]", functools.lru_cache(maxsize=1024)(function))


def parse_assignments(pairs: Sequence[str], option: str = "--set") -> dict[str, str]:
    """Parse ``key=value`` pairs of an ``option``; raises UsageError for a pair without '=' or a key given twice."""
    values: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"'{option} {pair}' does not have the form key=value", f"{option} k=10")
        if key in values:
            raise UsageError(f"option '{key}' is set twice: {values[key]} and {value}", "set it once")
        values[key] = value
    return values


def group_by_owner(values: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Group ``owner.key`` options by owner; raises UsageError for an option without an owner."""
    grouped: dict[str, dict[str, str]] = {}
    for key, value in values.items():
        owner, dot, name = key.partition(".")
        if not (owner and dot and name):
            raise UsageError(f"'--set {key}={value}' does not name a method", f"--set METHOD.{key}={value}")
        grouped.setdefault(owner, {})[name] = value
    return grouped


def build(cls: type[Any], values: Mapping[str, Any], owner: str) -> Any:
    """Return ``cls(**values)`` with every value checked against its annotation.

    Strings are converted to the field's type; a tuple is written ``0,0.5,1``, and None or an empty tuple ``none``.
    Errors name ``owner``. Raises UsageError for an unknown key (with the nearest one), an invalid value, or a number
    that is too large.
    """
    from pydantic import ValidationError

    if not isinstance(values, Mapping):
        raise UsageError(f"options of {owner} are {values!r}, not a mapping of names to values", 'such as {"lam": 0.5}')
    hints = _read_hints(cls)
    fields = {field.name for field in dataclasses.fields(cls)}
    checked: dict[str, Any] = {}
    for key, value in values.items():
        if key not in fields:
            raise UsageError(f"unknown option '{key}' for {owner}", registry.suggest_option(key, owner, fields))
        typed, hint = value, hints[key]
        kind = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
        if isinstance(value, str) and typing.get_origin(kind) is tuple:
            typed = [] if value == "none" else [part.strip() for part in value.split(",") if part.strip()]
        elif isinstance(value, int | float) and typing.get_origin(kind) is tuple:
            typed = [value]
        elif isinstance(value, int | float) and kind in (str, str | None):
            typed = as_typed(value)
        elif value == "none" and type(None) in typing.get_args(kind):
            typed = None
        try:
            checked[key] = _create_adapter(cls, key).validate_python(typed)
        except ValidationError as error:
            reason = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise UsageError(f"{key}={value} does not fit {owner}: {reason}") from None
        largest = _MAX_NUMBERS.get(type(checked[key]))
        if largest is not None and abs(checked[key]) > largest:
            raise UsageError(f"{key}={value} does not fit {owner}: the largest number is {largest:,}")
    try:
        return cls(**checked)
    except ValueError as error:
        raise UsageError(f"{owner}: {error}") from None


def require_whole(name: str, value: Any, least: int = 0) -> None:
    """Raise UsageError unless an argument is a whole number of at least ``least``."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise UsageError(f"{name} is {value!r}, not a whole number from {least} on", f"{name}={least}")


@cached
def _read_hints(cls: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


@cached
def _create_adapter(cls: type[Any], key: str) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(_read_hints(cls)[key], config=ConfigDict(allow_inf_nan=False))


def build_each(owners: Mapping[str, type[Any] | None], values: Mapping[str, Any]) -> list[Any]:
    """Return one config for each of ``owners`` (None for an owner without options), with the values of its fields.

    Raises UsageError for a key that is a field of none of them, naming all owners with options.
    """
    if not isinstance(values, Mapping):
        raise UsageError(f"options are {values!r}, not a mapping of names to values", 'such as {"alpha": 0.3}')
    known = {
        owner: set() if cls is None else {field.name for field in dataclasses.fields(cls)}
        for owner, cls in owners.items()
    }
    all_keys = set().union(*known.values())
    for key in values:
        if key not in all_keys:
            with_options = [owner for owner, cls in owners.items() if cls is not None]
            raise UsageError(f"unknown option '{key}' for {' and '.join(with_options)}", closest(key, all_keys))
    return [
        None if cls is None else build(cls, {key: value for key, value in values.items() if key in known[owner]}, owner)
        for owner, cls in owners.items()
    ]


def plain(config: Any) -> dict[str, Any]:
    """Return a dataclass as a dict of JSON values in field order, with tuples as lists."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; raises InputError if it is missing, malformed or too large for a configuration."""
    from pflcli.core.foreign import reading, size  # here, because few runs need it

    with reading(path, "TOML"):
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise InputError(
                f"{path} has {size(path.stat().st_size)}, but a configuration file has at most {size(_MAX_FILE_BYTES)}"
            )
        return tomllib.loads(path.read_text(encoding="utf-8"))


_MAX_NUMBERS = {int: 10**6, float: 1e38}
"""The largest useful numbers: a million epochs would never finish, and float32 ends at 3.4e38."""

_MAX_FILE_BYTES = 10**6
"""Maximum bytes of a configuration file."""
