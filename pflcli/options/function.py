"""The Python function of a command: its signature, its documentation, and the values that it accepts.

``command`` makes the function from the class that declares the command's options. Values may be given as on the command
line (``methods="fedavg,local"``), as Python objects (``["fedavg", "local"]``) or, where several are possible, alone.
Training settings and fields of ``Execution`` are keywords like all others.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import os
import re
import reprlib
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from pflcli.core import registry
from pflcli.core.errors import UsageError, closest
from pflcli.core.execution import Execution
from pflcli.core.reporter import SILENT
from pflcli.core.settings import Settings
from pflcli.options.declaration import Option, Options, declared_options, names_of_files

P = ParamSpec("P")
Asked = TypeVar("Asked", bound=Options)
Result_co = TypeVar("Result_co", covariant=True)


class ArgumentError(UsageError, TypeError):
    """An argument of a command's function is unknown, missing or given twice; a TypeError too, as Python raises."""


class Function(Protocol[P, Result_co]):
    """A command's function, which also accepts values as on the command line, and settings as keywords."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Result_co: ...
    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> Result_co: ...


def command(options: Callable[P, Asked]) -> Callable[[Callable[[Asked], Result_co]], Function[P, Result_co]]:
    """Return a decorator that gives a function the keywords of ``options``; the function receives them as one object.

    The command line is stored in their ``execution``, and the artifact records it.
    """
    cls = typing.cast(type[Options], options)

    def decorate(function: Callable[[Asked], Result_co]) -> Function[P, Result_co]:
        keywords = _list_keywords(cls)
        signature = inspect.Signature(
            [keyword.parameter for keyword in keywords],
            return_annotation=function.__annotations__.get("return", inspect.Signature.empty),
        )

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Result_co:
            asked = _read_arguments(cls, function.__name__, signature, args, kwargs)
            line = ("pfl", *cls.NAME.split(), *asked.words()[2:])
            execution = replace(asked.execution, command=line)
            return function(replace(typing.cast(Any, asked), execution=execution, **names_of_files(asked)))

        call.__signature__ = signature  # type: ignore[attr-defined]
        names = {option.flag: option.name for option in declared_options(cls) if option.name != "settings"}
        call.__doc__ = f"{inspect.getdoc(function)}\n\n{_describe_keywords(keywords, names)}"
        return typing.cast(Function[P, Result_co], call)

    return decorate


class _Type(str):
    """The type of a keyword as text, which ``help`` prints without quotes, and as the ``kind`` of values."""

    __repr__ = str.__str__
    kind: Any = Any


@dataclass(frozen=True)
class _Keyword:
    """A parameter of a command's function, with its help and the heading under which it is listed."""

    parameter: inspect.Parameter
    help: str
    heading: str
    default: str = ""
    """what the default means, if its value does not say it"""


def _list_keywords(cls: type[Options]) -> list[_Keyword]:
    """Return the parameters of a command's function: its own options, training settings, and fields of Execution."""
    own = [_own_keyword(option, hint) for option, hint in _options_with_types(cls)]
    training, execution = list[_Keyword](), list[_Keyword]()
    if any(option.name == "settings" for option in declared_options(cls)):
        help = "All training settings as one mapping."
        own.append(_keyword("settings", "Mapping[str, Any] | None", None, help, "Parameters", Mapping | None))
        for setting in registry.options(Settings):
            default = None if cls.TRAINING_DEFAULT else getattr(Settings(), setting.name)
            keyword = _keyword(setting.name, setting.type, default, setting.help, "Training settings")
            training.append(replace(keyword, default=cls.TRAINING_DEFAULT))
    described = {option.name: option for option in registry.options(Execution)}
    kinds = typing.get_type_hints(Execution)
    for name in [name for name in described if name in execution_names(cls)]:
        field = described[name]
        help = (cls.FORCE_HELP if name == "force" else "") or field.help
        if name == "reporter":
            execution.append(_keyword(name, "Reporter | None", None, help, "Execution"))
        else:
            execution.append(_keyword(name, field.type, getattr(Execution(), name), help, "Execution", kinds[name]))
    help = "All of these as one object."
    execution.append(_keyword("execution", "Execution | None", None, help, "Execution", Execution | None))
    return [*own, *training, *execution]


def execution_names(cls: type[Options]) -> tuple[str, ...]:
    """Return the fields of ``Execution`` that are options of a command, and the reporter."""
    writing = {"force": getattr(cls, "HAS_FORCE", True), "dry_run": cls.HAS_DRY_RUN}
    return (*cls.HARDWARE, *(name for name in writing if writing[name]), "reporter")


def _options_with_types(cls: type[Options]) -> Iterator[tuple[Option, _Type]]:
    """Yield the options of a command, except for the training settings, each with its Python type."""
    heavy = {name: type(name, (), {}) for name in ("Artifact", "Weights")}
    names = {**heavy, "Path": Path, "Mapping": Mapping, "Sequence": Sequence, "Any": Any}
    hints = typing.get_type_hints(cls, localns=names)
    for option in declared_options(cls):
        if option.name != "settings":
            kind = _Type(re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", inspect.formatannotation(hints[option.name])))
            kind.kind = hints[option.name]
            yield option, kind


def _own_keyword(option: Option, type_text: _Type) -> _Keyword:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if option.is_positional else inspect.Parameter.KEYWORD_ONLY
    shown = getattr(option.info, "show_default", True)
    default = inspect.Parameter.empty if option.is_required else option.default
    parameter = inspect.Parameter(option.name, kind, default=default, annotation=type_text)
    return _Keyword(parameter, option.info.help or "", "Parameters", shown if isinstance(shown, str) else "")


def _keyword(name: str, type_text: str, default: Any, help: str, heading: str, kind: Any = Any) -> _Keyword:
    annotation = _Type(re.sub("(.+), \\.\\.\\.", r"Sequence[\1]", type_text).replace("| none", "| None"))
    annotation.kind = kind
    parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    return _Keyword(parameter, help, heading)


def _describe_keywords(keywords: Sequence[_Keyword], names: Mapping[str, str]) -> str:
    """Return the sections of the docstring that list all keywords, with their types, defaults and help.

    Flags in the help become keywords: those in ``names``, such as ``options`` for ``--set``, else the flag's own word.
    """
    sections: dict[str, list[str]] = {}
    for keyword in keywords:
        parameter, default = keyword.parameter, ""
        if parameter.default is not inspect.Parameter.empty:
            default = f", default {keyword.default or repr(parameter.default)}"
        help = re.sub(
            r"(?<![\w`-])--[a-z][a-z-]*",
            lambda flag: names.get(flag[0], flag[0].removeprefix("--").replace("-", "_")),
            keyword.help,
        )
        lines = sections.setdefault(keyword.heading, [])
        lines.append(f"{parameter.name} : {parameter.annotation}{default}")
        lines += textwrap.wrap(
            " ".join(help.replace("\\[", "[").split()), 112, initial_indent=" " * 4, subsequent_indent=" " * 4
        )
    return "\n\n".join("\n".join([heading, "-" * len(heading), *lines]) for heading, lines in sections.items())


def _read_arguments(
    cls: type[Options], name: str, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Options:
    """Return the options of a call; raises ArgumentError for unknown, missing or contradicting ones.

    It is also raised for values of another type, and for those out of range.
    """
    unknown = [key for key in kwargs if key not in signature.parameters]
    if unknown:
        raise ArgumentError(f"{name}() has no argument '{unknown[0]}'", closest(unknown[0], signature.parameters))
    try:
        given = dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        required = [key for key, each in signature.parameters.items() if each.default is inspect.Parameter.empty]
        raise ArgumentError(f"{name}(): {error}", f"{name}({', '.join(required)}, ...)") from None
    own = {option.name: option for option in declared_options(cls)}
    for key, value in given.items():
        given[key] = value if key == "settings" or key not in own else _read_value(own[key], value)
        annotation = signature.parameters[key].annotation
        if not _has_type(given[key], annotation.kind):
            raise ArgumentError(f"{name}(): {key} is {reprlib.repr(value)}, not {annotation}")
    fields_of_execution = {key: given.pop(key) for key in execution_names(cls) if key in given}
    if fields_of_execution.get("reporter", SILENT) is None:
        del fields_of_execution["reporter"]
    execution = replace(given.pop("execution", None) or Execution(), **fields_of_execution)
    if "settings" in own:
        settings = dict(given.pop("settings", None) or {})
        training = {key: given.pop(key) for key in [*given] if key not in own}
        if cls.TRAINING_DEFAULT:
            training = {key: value for key, value in training.items() if value is not None}
        for key, value in training.items():
            if key in settings and settings[key] != value:
                raise ArgumentError(f"{name}(): {key} is given twice: {value!r} and, in settings, {settings[key]!r}")
        given["settings"] = {**settings, **training} or None
    for key, value in given.items():
        if own[key].choices and isinstance(value, str) and value not in own[key].choices:
            raise UsageError(f"unknown {own[key].flag} '{value}'", closest(value, own[key].choices))
        least, most = (getattr(own[key].info, bound, None) for bound in ("min", "max"))
        if isinstance(value, int | float) and not (least in (None, value) or value > least):
            raise ArgumentError(f"{name}(): {key}={value} is not at least {least}")
        if isinstance(value, int | float) and not (most in (None, value) or value < most):
            raise ArgumentError(f"{name}(): {key}={value} is not at most {most}")
    return cls(**given, execution=execution)


def _has_type(value: Any, kind: Any) -> bool:
    """Return whether a value has a type; classes are compared by name, as those of artifacts are not imported here."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return any(_has_type(value, part) for part in parts)
    if origin in (Sequence, tuple):
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):  # one value may stand for a sequence
            return origin is Sequence and any(_has_type(value, part) for part in parts)
        return all(any(_has_type(item, part) for part in parts) for item in value)
    wider = {Any: object, float: numbers.Real, int: numbers.Integral, Path: os.PathLike}.get(kind, origin or kind)
    if not isinstance(wider, type) or isinstance(value, wider):  # no class, such as Literal
        return True
    return wider.__name__ in {each.__name__ for each in type(value).__mro__}


def _read_value(option: Option, value: Any) -> Any:
    """Return the value of an option: text is read as on the command line, and a single value may stand for a list.

    Raises ArgumentError for values of another type.
    """
    from pflcli.artifacts.make import Outcome

    typed = option.typed_as
    several = isinstance(value, list | tuple)
    values = [each.path if isinstance(each, Outcome) else each for each in (value if several else [value])]
    if typed is not None and all(isinstance(each, str) for each in values):
        if typed.kind is str and not several:
            return typed.parse(values[0])
        if typed.kind == list[str]:
            return typed.parse(values)
    if typed is not None and typed.kind == list[str] and not isinstance(value, Mapping | types.NoneType):
        raise ArgumentError(f"{option.name}={value!r} is not a mapping", f"{option.name}={{'KEY': VALUE}}")
    if option.is_list:
        return value if value is None else values
    number = next((kind for kind in (int, float) if kind in (option.kind, *typing.get_args(option.kind))), None)
    if isinstance(value, str) and number is not None:
        try:
            return number(value)
        except ValueError:
            raise ArgumentError(f"{option.name}={value!r} is not a number") from None
    return value if several else values[0]
