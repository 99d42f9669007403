"""Build Typer commands from the classes in ``pflcli/options`` that declare their options."""

from __future__ import annotations

import inspect
import re
import shlex
import typing
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command
from typer.utils import get_params_from_function

from pflcli.cli import console
from pflcli.core import config, plugins, registry
from pflcli.core.errors import UsageError, closest
from pflcli.core.execution import ENGINES, EXECUTORS, Execution
from pflcli.core.settings import Settings, changed
from pflcli.options import completion
from pflcli.options.declaration import Options, as_pairs, declared_options
from pflcli.options.function import execution_names

EXAMPLES = "\nExamples:\n"
"""The heading, in a docstring, of the examples of a command, which follow one per line."""


class Command(TyperCommand):
    """A command that makes its parameters when they are first used, because a command line needs those of one command.

    Its callback takes no arguments and returns the function whose signature has the parameters. The help ends with the
    examples of the docstring, and shows a default as ``[default: 60]``: Typer alone joins all lines into one paragraph,
    and writes a default given as text as ``[default: (60)]``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        text, heading, lines = (self.help or "").partition(EXAMPLES)
        self.examples = [line.strip() for line in lines.splitlines() if line.strip()]
        if heading:
            # Older versions of Typer join lines that no empty line separates.
            between = "\n" if hasattr(typer, "TyperException") else "\n\n"
            self.help, self.epilog = text.strip(), between.join([heading.strip(), *self.examples])
        del self.params  # Click's empty list

    @cached_property
    def params(self) -> list[Any]:  # type: ignore[override]
        """The arguments and options."""
        function = inspect.unwrap(self.callback)()  # type: ignore[arg-type]
        alone = typer.Typer(add_completion=False, rich_markup_mode=self.rich_markup_mode)
        alone.command()(function)
        built = get_command(alone)
        self.callback = built.callback
        without_help: list[Any] = [param for param in built.params if getattr(param, "help", None) is None]
        if without_help:  # Click 8.5 drops what older versions of Typer say of arguments
            declared = get_params_from_function(function)
            for param in without_help:
                param.help = declared[param.name].default.help
        opening, closing = ("[dim]\\[", "][/]") if self.rich_markup_mode == "rich" else ("[", "]")
        for option in built.params:
            if isinstance(option, TyperOption) and isinstance(option.show_default, str):
                option.help = f"{option.help} {opening}default: {option.show_default}{closing}"
                option.show_default = False
        return built.params

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Apply the options of ``pfl`` itself that stand behind the command, then parse the others."""
        shared: dict[str, Any] = {name: param for param in ctx.find_root().command.params for name in _names(param)}
        for param in self.params:
            for name in _names(param):
                shared.pop(name, None)
        behind, moved = [*args], []
        end = behind.index("--") if "--" in behind else len(behind)
        place = 0
        while place < end:
            name, has_value, _ = behind[place].partition("=")
            count = 0 if name not in shared else 1 if has_value or shared[name].is_flag else 2
            moved += behind[place : place + count]
            del behind[place : place + count]
            end -= count
            place += not count
        if moved:
            root = ctx.find_root()
            with root.command.make_context("pfl", [*moved, str(ctx.info_name)]) as own:
                own.invoke(root.command.callback, **own.params)
        parsed: list[str] = super().parse_args(ctx, [*behind])
        if not ctx.resilient_parsing:
            self._require_single(ctx, behind)
        return parsed

    def _require_single(self, ctx: Any, args: list[str]) -> None:
        """Raise UsageError if an option with one value is given again, of which Typer alone keeps the last value."""
        _, _, given = self.make_parser(ctx).parse_args(args=[*args])
        for param, count in Counter(given).items():
            if count == 1 or not isinstance(param, TyperOption) or param.multiple or param.is_flag or param.count:
                continue
            name = max(param.opts, key=len)
            times = "twice" if count == 2 else f"{count} times"
            if re.fullmatch(r"(?:.*\|)?(.+),\1|OLD=NEW", param.metavar or ""):  # a list, such as NAME,NAME
                values = [each for each in _values(args, param.opts) if each]
                fix = f"{name} {shlex.quote(','.join(values))}"
            else:
                fix = "give it once"
            raise UsageError(f"{name} is given {times}", fix)


def _values(args: list[str], names: Sequence[str]) -> list[str]:
    """Return the values of an option with these long ``names`` on a command line."""
    pairs = [(*arg.partition("="), after) for arg, after in zip(args, [*args[1:], ""], strict=True)]
    return [value if sign else after for name, sign, value, after in pairs if name in names]


def _names(param: Any) -> list[str]:
    """Return the names of an option that are not its short ones."""
    return [name for name in (*param.opts, *param.secondary_opts) if name.startswith("--")]


class Group(TyperGroup):
    """``pfl``, or a group of its commands, which accept options of all commands also before a command's name.

    The help of ``pfl`` ends with its own options; Typer alone begins with them.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move these options behind the name of the command, then parse the command line."""
        shared = ctx.find_root().command.params
        valued = {name for param in shared for name in _names(param) if not getattr(param, "is_flag", True)}
        first = 0
        while first < len(args) and args[first].startswith("-"):
            first += 2 if args[first] in valued else 1
        stays = {"-h", "--help"} if ctx.parent else {*args} - {*_COMMON_FLAGS}
        moved = [arg for arg in args[:first] if arg not in stays]
        before = [arg for arg in args[:first] if arg in stays]
        parsed: list[str] = super().parse_args(ctx, [*before, *args[first : first + 1], *moved, *args[first + 1 :]])
        return parsed

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; raises UsageError for one of a plug-in that is not installed."""
        found = super().get_command(ctx, cmd_name)
        if found is None and ctx.parent is None and (why := plugins.why_missing(cmd_name)):
            raise UsageError(f"there is no command '{cmd_name}': {why}")
        return found

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters; none while the help above the options is printed."""
        return [] if self._is_above_options else super().get_params(ctx)

    _is_above_options = False

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print usage, commands, and then the options."""
        if self.rich_markup_mode is None or ctx.parent is not None:
            super().format_help(ctx, formatter)
            return
        from typer import rich_utils

        self._is_above_options = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._is_above_options = False
        rich_utils._print_options_panel(
            name="Global options",
            params=self.get_params(ctx),
            ctx=ctx,
            markup_mode=self.rich_markup_mode,
            console=rich_utils._get_rich_console(),
        )


def walk_commands(group: Any, *path: str) -> Iterator[tuple[str, Any]]:
    """Yield all commands of a group by the words that are typed, such as ``site check``, in the order of the help."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from walk_commands(command, *path, name)
        else:
            yield " ".join([*path, name]), command


_COMMON_FLAGS = ("--quiet", "-q", "--verbose", "-v", "--json")
"""Options that may stand before the command's name, though they are options of the commands."""


def _read_defaults(ctx: typer.Context, paths: list[Path] | None) -> list[Path] | None:
    """Read defaults of this command's options from its table in TOML files; typed options override them.

    Tables are merged key by key, nested ones too; of values for the same key, or for alternatives such as steps and
    epochs, the last one counts.
    """
    table: dict[str, Any] = {}
    for path in paths or ():
        table = _merge(table, _read_table(ctx, path))
    repeated = {param.name for param in ctx.command.params if param.nargs == -1 or getattr(param, "multiple", False)}
    defaults: dict[str, str | list[str]] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            defaults[name] = as_pairs(value)
        elif name in repeated:
            defaults[name] = [_as_typed(item) for item in (value if isinstance(value, list) else [value])]
        else:
            defaults[name] = _as_typed(value)
    ctx.default_map = {**(ctx.default_map or {}), **defaults}
    return paths


def _merge(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of two tables; values of ``later`` replace those of ``earlier``, except in nested tables."""
    nested = {
        key: _merge(earlier[key], value)
        for key, value in later.items()
        if isinstance(value, Mapping) and isinstance(earlier.get(key), Mapping)
    }
    return changed(earlier, {**later, **nested})


def _read_table(ctx: Any, path: Path) -> dict[str, Any]:
    """Return the values in this command's table of a TOML file, by the name of the parameter.

    The table of a command in a group is in that of the group, such as ``[federation.run]``.
    """
    table: Any = config.read_toml(path)
    groups = [ctx]
    while groups[0].parent is not None:
        groups.insert(0, groups[0].parent)
    for group, within in pairwise(groups):
        commands = [*getattr(group.command, "commands", {})]
        for name in table:
            if name not in commands and not plugins.why_missing(name):
                raise UsageError(f"{path}: unknown table [{_table_name(group, name)}]", closest(name, commands))
        table = table.get(str(within.info_name), {})
        if not isinstance(table, Mapping):
            raise UsageError(f"{path}: '{_table_name(within)}' is not a table", f"[{_table_name(within)}]")
    known = {
        opt.removeprefix("--"): str(param.name)
        for param in ctx.command.params
        for opt in param.opts
        if not re.fullmatch("-.|--config", opt)
    }
    values: dict[str, Any] = {}
    for key, value in table.items():
        option = key.replace("_", "-")
        if option not in known:
            raise UsageError(f"{path}: unknown key '{key}' in [{_table_name(ctx)}]", closest(key, known))
        values[known[option]] = value
    return values


def _table_name(ctx: Any, *inner: str) -> str:
    """Return the name of a command's table, or of one in the table of a group, such as ``federation.run``."""
    return ".".join([*ctx.command_path.split()[1:], *inner])


def _as_typed(value: Any) -> Any:
    """Return a TOML value as a user would type it."""
    if isinstance(value, list):
        return ",".join(str(_as_typed(item)) for item in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


Config = Annotated[
    list[Path] | None,
    typer.Option(
        "--config",
        help="Read defaults of options from this TOML file, from the table named like this command; repeat it to merge "
        "files, of which the last that has a key counts.",
        callback=_read_defaults,
        is_eager=True,
        metavar="FILE",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result and errors.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print more details, and tracebacks of bugs.")]

Show = Callable[..., None]
"""A function that prints the result of a command: ``show(result, asked, execution, as_json=, quiet=)``."""


def show_outcome(result: Any, asked: Mapping[str, Any], execution: Execution, *, as_json: bool, quiet: bool) -> None:
    """Print the path of the artifact that a command made, or its facts as JSON."""
    console.result(result, as_json=as_json)


@dataclass(frozen=True)
class Terminal:
    """How the terminal runs a command and prints what it returns."""

    show: Show = show_outcome
    call: Callable[..., Any] | None = None
    """calls the command's function, which it is given with the arguments, the context and ``as_json``"""
    options: Mapping[str, Any] = field(default_factory=dict)
    """additional options by name, which only ``call`` receives"""
    words: type[Command] = Command
    """reads the words of the command line"""


def command(cls: type[Options], load: Callable[[], Callable[..., Any]], terminal: Terminal) -> Callable[..., None]:
    """Return the function that Typer turns into the command with the options of ``cls``.

    It calls the command's Python function, which ``load`` imports, and prints the result as ``terminal`` says.
    """
    by_name = {option.name: option for option in declared_options(cls)}
    settings = _setting_parameters(cls.TRAINING_DEFAULT) if "settings" in by_name else []
    execution_parameters = _execution_parameters(cls)
    parameters = [_parameter("context", typer.Context)]
    for option in by_name.values():
        if option.name == "settings":
            parameters += settings
            continue
        default = option.default
        if option.typed_as is not None and default is not None:
            default = option.text(default) or None
        kind = option.kind | None if default is None and not option.is_required else option.kind
        parameters.append(
            _parameter(
                option.name, Annotated[kind, option.info], inspect.Parameter.empty if option.is_required else default
            )
        )
    parameters += [_parameter(name, annotation, None) for name, annotation in terminal.options.items()]
    parameters += execution_parameters

    def run(**values: Any) -> None:
        context = values.pop("context")
        as_json, verbose, config_files = (values.pop(name) for name in ("as_json", "verbose", "config_file"))
        quiet = values.pop("quiet")
        chosen = {item.name: values.pop(item.name) for item in execution_parameters if item.name in values}
        reporter = console.Console(quiet=quiet, verbose=verbose)
        execution = Execution(**chosen, reporter=reporter).reading(*config_files or ())
        asked: dict[str, Any] = {}
        if settings:
            typed = {item.name: value for item in settings if (value := values.pop(item.name)) is not None}
            asked["settings"] = _steps_or_epochs(typed, context)
        beside = {name: values.pop(name) for name in terminal.options}
        for name, value in values.items():
            parse = by_name[name].typed_as
            if value is not None:
                asked[name] = value if parse is None else parse.parse(value)
        function, arguments = load(), {**asked, **beside, "execution": execution}
        call = terminal.call
        result = function(**arguments) if call is None else call(function, arguments, context, as_json=as_json)
        terminal.show(result, asked, execution, as_json=as_json, quiet=quiet)

    run.__doc__ = inspect.getdoc(cls)
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _steps_or_epochs(chosen: Mapping[str, Any], context: typer.Context) -> dict[str, Any]:
    """Return the settings with either steps or epochs: the typed one overrides the one of the configuration file.

    Raises UsageError if both are typed, or both are in the file.
    """
    if not chosen.get("steps") or "epochs" not in chosen:
        return dict(chosen)
    sources = {name: context.get_parameter_source(name) for name in ("steps", "epochs")}
    typed = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if len(typed) != 1:
        raise UsageError("--steps and --epochs both set how long clients train", "give one of them")
    return changed(
        {name: value for name, value in chosen.items() if name not in typed},
        {typed[0]: chosen[typed[0]]},
    )


_COMPLETERS: dict[str, Callable[..., Any]] = {
    "model": completion.names("models", "auto"),
    "upload": completion.names("uploads"),
    "aggregator": completion.names("aggregators"),
    "augment": completion.words("flip", "crop", "flip,crop"),
    "device": completion.words("auto", "cpu", "cuda"),
    "engine": completion.words(*ENGINES),
    "executor": completion.words(*EXECUTORS),
}
"""Completers of training settings and fields of ``Execution`` whose type does not list their values."""


def _execution_parameters(cls: type[Options]) -> list[inspect.Parameter]:
    """Return the parameters of a command that do not change its result: fields of ``Execution``, and the output."""
    fields, usual = {option.name: option for option in registry.options(Execution)}, Execution()

    def hardware(name: str) -> inspect.Parameter:
        option, default = fields[name], getattr(usual, name)
        info = typer.Option(
            help=option.help,
            metavar="HOST:PORT" if name == "ray_address" else "NAME" if isinstance(default, str) else "N",
            show_default="this machine" if name == "ray_address" else True,
            autocompletion=_COMPLETERS.get(name),
        )
        return _parameter(name, Annotated[type(default), info], default)

    writing = {
        "force": typer.Option("--force", "-f", help=cls.FORCE_HELP or fields["force"].help),
        "dry_run": typer.Option("--dry-run", "-n", help=fields["dry_run"].help),
    }
    return [
        *(hardware(name) for name in fields if name in cls.HARDWARE),
        _parameter("config_file", Config, None),
        *(_parameter(name, Annotated[bool, writing[name]], False) for name in writing if name in execution_names(cls)),
        _parameter("as_json", Json, False),
        _parameter("quiet", Quiet, False),
        _parameter("verbose", Verbose, False),
    ]


@cache
def _setting_parameters(default: str) -> list[inspect.Parameter]:
    """Return the training settings as parameters, with None as default; the help shows ``default``, if it is given."""
    hints, usual = typing.get_type_hints(Settings), vars(Settings())
    return [_setting(each, hints[each.name], usual[each.name], default) for each in registry.options(Settings)]


def _setting(option: registry.Option, hint: Any, value: Any, default: str) -> inspect.Parameter:
    if type(None) in typing.get_args(hint):
        hint = typing.get_args(hint)[0]
    kind, shape = {int: (int, "N"), float: (float, "F"), str: (str, "NAME")}.get(hint, (str, "VALUE"))
    if typing.get_origin(hint) is tuple:  # texts repeat the option; numbers and choices are separated by commas
        is_choice = typing.get_origin(typing.get_args(hint)[0]) is typing.Literal
        kind, shape = (list[str], "NAME") if hint == tuple[str, ...] else (str, "NAME,NAME" if is_choice else "N,N")
    name = option.name.replace("_", "-")
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
    return _parameter(option.name, kind | None, info)
