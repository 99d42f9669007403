"""The command line: options, help and output, in one short file per command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from pflcli import __version__, registry
from pflcli.cli import check, doctor, listing, new, report, results, show
from pflcli.cli.from_options import Command, Group, Show, command, show_outcome
from pflcli.errors import UsageError
from pflcli.options.audit import Audit
from pflcli.options.build_datastore import BuildDatastore
from pflcli.options.compare import Compare
from pflcli.options.declaration import Options
from pflcli.options.demo import Demo
from pflcli.options.embed import Embed
from pflcli.options.evaluate import Evaluate
from pflcli.options.export import Export
from pflcli.options.extract import Extract
from pflcli.options.import_data import ImportData
from pflcli.options.new_client import NewClient
from pflcli.options.partition import Partition
from pflcli.options.personalize import Personalize
from pflcli.options.predict import Predict
from pflcli.options.stack import Stack
from pflcli.options.sweep import Sweep
from pflcli.options.track import Track
from pflcli.options.train_global import TrainGlobal
from pflcli.options.tune import Tune
from pflcli.options.update_datastore import UpdateDatastore

_SUMMARY = "Find out which personalized federated learning method works best on your data, by how much, and for whom."

app = typer.Typer(
    name="pfl",
    cls=Group,
    help=_SUMMARY,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)

_CHAIN, _USE, _LOOK, _OWN = "Make artifacts", "Use them", "Look at them", "Write your own"


def _add(cls: type[Options], panel: str, show: Show = show_outcome, words: type[Command] = Command) -> None:
    app.command(cls.NAME, cls=words, rich_help_panel=panel)(command(cls, show))


_add(ImportData, _CHAIN, words=results.ImportCommand)
_add(Embed, _CHAIN)
_add(Partition, _CHAIN)
_add(TrainGlobal, _CHAIN)
_add(Extract, _CHAIN)
_add(BuildDatastore, _CHAIN)
_add(UpdateDatastore, _CHAIN)
_add(Personalize, _CHAIN)
_add(Stack, _CHAIN)
_add(Evaluate, _CHAIN, results.show_scores)
_add(Audit, _CHAIN, results.show_audit)
app.command("compare", cls=results.CompareCommand, rich_help_panel=_CHAIN)(
    command(Compare, results.show_comparison, results.run_comparison, {"plan": results.PLAN})
)
_add(Demo, _CHAIN, results.show_scores)
_add(Tune, _CHAIN, results.show_trials)
_add(Sweep, _CHAIN)
_add(NewClient, _USE)
_add(Predict, _USE, results.show_predictions)
_add(Export, _USE, results.show_export)
app.command("report", cls=Command, rich_help_panel=_LOOK)(report.command)
_add(Track, _LOOK, results.show_tracked)
app.command("show", cls=Command, rich_help_panel=_LOOK)(show.command)
app.command("list", cls=Command, rich_help_panel=_LOOK)(listing.command)
app.command("new", cls=Command, rich_help_panel=_OWN)(new.command)
app.command("check", cls=Command, rich_help_panel=_OWN)(check.command)
app.command("doctor", cls=Command, rich_help_panel=_LOOK)(doctor.command)


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
    if not accelerated:
        os.environ["PFL_ACCELERATED"] = "0"  # worker processes inherit it; see pflcli/engine/backend.py
