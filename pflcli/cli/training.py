"""Training settings as options: one per field of ``Settings``, so that no command repeats them."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

import typer

from pflcli import registry
from pflcli.cli import completion, shared
from pflcli.errors import UsageError
from pflcli.settings import Settings, changed

Command = Callable[..., Any]

_CONTEXT = "context"
"""The parameter in which Typer passes where each value comes from."""


def options(default: str = "") -> Callable[[Command], Command]:
    """Give a command one option per setting; its parameter ``settings`` receives a dict of those that a user set.

    ``default`` is what the help shows as the default of every setting; if it is empty, the help shows the value.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        takes_context = _CONTEXT in signature.parameters
        by_name = {parameter.name: parameter for parameter in _parameters(default)}

        @functools.wraps(command)
        def run(**values: Any) -> Any:
            context = values[_CONTEXT] if takes_context else values.pop(_CONTEXT)
            chosen = shared.without_none(**{name: values.pop(name) for name in by_name})
            return command(**values, settings=_steps_or_epochs(chosen, context))

        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            if parameter.name == _CONTEXT:
                continue
            parameters += by_name.values() if parameter.name == "settings" else [parameter]
        context = inspect.Parameter(_CONTEXT, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
        shared.show_parameters(run, [context, *parameters])
        return run

    return decorate


def _steps_or_epochs(chosen: Mapping[str, Any], context: typer.Context) -> dict[str, Any]:
    """Return the settings with steps or epochs, not both: the typed one overrides that of the configuration file.

    Raises UsageError if both are typed, or both are in the file.
    """
    if not chosen.get("steps") or "epochs" not in chosen:
        return dict(chosen)
    sources = {name: context.get_parameter_source(name) for name in ("steps", "epochs")}
    typed = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if len(typed) != 1:
        raise UsageError("--steps and --epochs both say how long clients train", "give one of them")
    return changed(
        {name: value for name, value in chosen.items() if name not in typed},
        {typed[0]: chosen[typed[0]]},
    )


_COMPLETERS = {"model": completion.names("models", "auto"), "upload": completion.steps("uploads")}
_COMPLETERS["aggregator"] = completion.steps("aggregators")


def _parameters(default: str) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(Settings)
    return [_parameter(option, hints[option.name], default) for option in registry.options(Settings)]


def _parameter(option: registry.Option, hint: Any, default: str) -> inspect.Parameter:
    """Return a setting as a parameter for Typer, with the default None."""
    if type(None) in typing.get_args(hint):
        hint = typing.get_args(hint)[0]
    kind, shape = {int: (int, "N"), float: (float, "F"), str: (str, "NAME")}.get(hint, (str, "VALUE"))
    if typing.get_origin(hint) is tuple:  # words by repeating the option, numbers separated by commas
        kind, shape = (list[str], "NAME") if hint == tuple[str, ...] else (str, "N,N")
    value, name = getattr(Settings(), option.name), option.name.replace("_", "-")
    if hint is bool:
        kind, shape = bool, ""
        name = f"{name}/--no-{name}"
    info = typer.Option(
        None,
        f"--{name}",
        help=option.help,
        metavar=shape or None,
        show_default=default or ("none" if value in ((), None) else str(value).lower() if hint is bool else str(value)),
        rich_help_panel="Training",
        autocompletion=_COMPLETERS.get(option.name, completion.words(*completion.choices(option))),
    )
    where = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(option.name, where, default=info, annotation=kind | None)
