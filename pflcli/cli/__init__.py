"""The command line: options, help and output, in one short file per command."""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from pflcli import __version__
from pflcli.cli import doctor, listing, results, show
from pflcli.cli.from_options import Command, Group, Terminal, command
from pflcli.core import plugins, registry, tasks
from pflcli.core.errors import InputError, UsageError
from pflcli.options.build_datastore import BuildDatastore
from pflcli.options.compare import Compare
from pflcli.options.declaration import Options
from pflcli.options.embed import Embed
from pflcli.options.evaluate import Evaluate
from pflcli.options.extract import Extract
from pflcli.options.import_data import ImportData
from pflcli.options.new_client import NewClient
from pflcli.options.partition import Partition
from pflcli.options.personalize import Personalize
from pflcli.options.predict import Predict
from pflcli.options.stack import Stack
from pflcli.options.train_global import TrainGlobal
from pflcli.options.tune import Tune

_SUMMARY = "Find out which personalized federated learning method works best on your data, by how much, and for whom."

app = typer.Typer(
    name="pfl",
    cls=Group,
    help=_SUMMARY,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)

_FIRST, _STEPS, _MORE, _LOOK_UP = "From data to an answer", "Single steps", "More", "Look up"
"""Headings of the help; those of plug-ins come before the last."""
_USUAL = Terminal()
_groups: dict[str, typer.Typer] = {}
"""Commands that are groups of others."""


def _add(
    cls: type[Options], panel: str, terminal: Terminal = _USUAL, load: Callable[[], Callable[..., Any]] | None = None
) -> None:
    """Add the command with the options of ``cls``, whose function is in ``pflcli.commands`` or given by ``load``."""
    _register(cls.NAME, panel, cls, lambda: command(cls, load or partial(_load, cls), terminal), terminal.words)


def _register(
    name: str, panel: str, documented: object, declare: Callable[[], Callable[..., Any]], words: type[Command] = Command
) -> None:
    """Add a command with a docstring; ``declare`` returns the function that has its parameters."""
    group, _, last = name.rpartition(" ")
    help, heading = inspect.getdoc(documented), None if group else panel
    _groups.get(group, app).command(last, cls=words, help=help, rich_help_panel=heading)(declare)


def _load(cls: type[Options]) -> Callable[..., Any]:
    """Return the Python function of a command: ``import_data`` for the class ``ImportData``."""
    name = re.sub("(?<=.)([A-Z])", r"_\1", cls.__name__).lower()
    function: Callable[..., Any] = getattr(importlib.import_module(f"pflcli.commands.{name}"), name)
    return function


def _add_plugins() -> None:
    """Add the commands of plug-ins, each at the end of its panel or ``after`` the command that it names."""
    commands = plugins.added("COMMANDS")
    for name, (plug, help) in plugins.added("GROUPS").items():
        panel = next((facts["panel"] for each, (_, facts) in commands.items() if each.startswith(f"{name} ")), None)
        if panel is None or name in _names():
            plugins.leave_out(f"pfl {name}", plug, "a group needs commands, and a name of its own")
            continue
        _groups[name] = typer.Typer(name=name, cls=Group, help=help, no_args_is_help=True)
        app.add_typer(_groups[name], rich_help_panel=panel)
    followed: dict[str, int] = {}
    for name, (plug, facts) in commands.items():
        try:
            _add_of_plugin(name, plug, facts)
        except Exception as error:  # whatever a file of a stranger raises
            plugins.leave_out(f"pfl {name}", plug, error)
            continue
        listed, names = app.registered_commands, _names()
        if (earlier := facts.get("after")) in names and " " not in name:
            followed[earlier] = followed.get(earlier, 0) + 1
            listed.insert(names.index(earlier) + followed[earlier], listed.pop())
    panels = [*dict.fromkeys(each.rich_help_panel for each in app.registered_commands)]
    app.registered_commands.sort(key=lambda each: panels.index(each.rich_help_panel))


def _names() -> list[str | None]:
    return [each.name for each in app.registered_commands]


def _add_of_plugin(name: str, plug: plugins.PlugIn, facts: Mapping[str, Any]) -> None:
    """Add a command of a plug-in; raises InputError if it cannot be added."""
    cls = plug.load(facts["options"])
    group, _, _ = name.rpartition(" ")
    if name != cls.NAME or (group and group not in _groups):
        raise InputError(f"{facts['options']} has the NAME '{cls.NAME}', and GROUPS are {', '.join(_groups) or 'none'}")
    if name in _names():
        raise InputError("pfl has a command of this name")
    terminal = plug.load(facts["terminal"]) if "terminal" in facts else _USUAL
    _add(cls, facts["panel"], terminal, partial(plug.load, facts["function"]))


_add(ImportData, _FIRST, Terminal(words=results.ImportCommand))
_add(Partition, _FIRST)
_add(
    Compare,
    _FIRST,
    Terminal(results.show_comparison, results.run_comparison, {"plan": results.PLAN}, results.CompareCommand),
)
_register("show", _FIRST, show.command, lambda: show.command)
_add(Tune, _FIRST, Terminal(results.show_trials))
_add(Predict, _FIRST, Terminal(results.show_predictions))
_add(NewClient, _FIRST)
_add(TrainGlobal, _STEPS)
_add(Extract, _STEPS)
_add(BuildDatastore, _STEPS)
_add(Personalize, _STEPS)
_add(Evaluate, _STEPS, Terminal(results.show_table))
_add(Embed, _MORE)
_add(Stack, _MORE)
_add_plugins()
_register("list", _LOOK_UP, listing.command, lambda: listing.command)
_register("doctor", _LOOK_UP, doctor.command, lambda: doctor.command)


def _version(is_given: bool) -> None:
    if is_given:
        typer.echo(f"pfl {__version__}")
        raise typer.Exit


@app.callback(help=_SUMMARY)
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    accelerated: Annotated[
        bool, typer.Option(help="Use compiled loops where they are faster, instead of only PyTorch and NumPy.")
    ] = True,
    use: Annotated[
        list[str] | None,
        typer.Option(
            help="Also use the method, model, scheme or the like in this Python file, or the networks in this installed"
            " module (package.module); repeat the option for more.",
            metavar="FILE|MODULE",
        ),
    ] = None,
) -> None:
    for word in use or ():
        if "." not in word:
            raise UsageError(f"--use {word} is neither a Python file nor a module", "--use ./mine.py")
        registry.use(registry.group_of(Path(word)) if registry.is_file(word) else "models", word)
    if use:
        tasks.add_used()
    if not accelerated:
        os.environ["PFL_ACCELERATED"] = "0"  # worker processes inherit it; see pflcli/core/engine/backend.py
