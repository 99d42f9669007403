"""The command line: options, help and output, in one short file per command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from pflcli import __version__
from pflcli.cli import check, doctor, listing, new, report, results, show, sites
from pflcli.cli.from_options import Command, Group, Show, command, show_outcome
from pflcli.core import registry
from pflcli.core.errors import UsageError
from pflcli.options.audit import Audit
from pflcli.options.build_datastore import BuildDatastore
from pflcli.options.compare import Compare
from pflcli.options.declaration import Options
from pflcli.options.demo import Demo
from pflcli.options.embed import Embed
from pflcli.options.evaluate import Evaluate
from pflcli.options.export import Export
from pflcli.options.extract import Extract
from pflcli.options.federation import CheckFederation, CreateFederation, RunFederation
from pflcli.options.import_data import ImportData
from pflcli.options.new_client import NewClient
from pflcli.options.partition import Partition
from pflcli.options.personalize import Personalize
from pflcli.options.predict import Predict
from pflcli.options.site import AnswerMessage, CheckSite, ServeSite
from pflcli.options.stack import Stack
from pflcli.options.sweep import Sweep
from pflcli.options.track import Track
from pflcli.options.train_global import TrainGlobal
from pflcli.options.tune import Tune
from pflcli.options.update_datastore import UpdateDatastore
from pflcli.options.verify import Verify

_SUMMARY = "Find out which personalized federated learning method works best on your data, by how much, and for whom."

app = typer.Typer(
    name="pfl",
    cls=Group,
    help=_SUMMARY,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)

_FIRST, _STEPS, _MORE, _REAL, _OWN, _LOOK_UP = (
    "From data to an answer",
    "Single steps",
    "More",
    "Among real sites",
    "Write your own",
    "Look up",
)


_GROUPS = {
    "federation": "Run a chosen method among real sites: what they agree on, and the server.",
    "site": "Take part in a federation with the samples of one site, which never leave it.",
}
"""The help of commands that are groups of others."""
_apps = {name: typer.Typer(name=name, cls=Group, help=_GROUPS[name], no_args_is_help=True) for name in _GROUPS}
for group in _apps.values():
    app.add_typer(group, rich_help_panel=_REAL)


def _add(cls: type[Options], panel: str, show: Show = show_outcome, words: type[Command] = Command) -> None:
    group, _, name = cls.NAME.rpartition(" ")
    _apps.get(group, app).command(name, cls=words, rich_help_panel=None if group else panel)(command(cls, show))


_add(ImportData, _FIRST, words=results.ImportCommand)
_add(Partition, _FIRST)
app.command("compare", cls=results.CompareCommand, rich_help_panel=_FIRST)(
    command(Compare, results.show_comparison, results.run_comparison, {"plan": results.PLAN})
)
app.command("verify", cls=results.CompareCommand, rich_help_panel=_FIRST)(
    command(Verify, results.show_verdicts, results.run_comparison, {"plan": results.PLAN})
)
app.command("report", cls=Command, rich_help_panel=_FIRST)(report.command)
app.command("show", cls=Command, rich_help_panel=_FIRST)(show.command)
_add(Tune, _FIRST, results.show_trials)
_add(Predict, _FIRST, results.show_predictions)
_add(NewClient, _FIRST)
_add(Export, _FIRST, results.show_export)
_add(TrainGlobal, _STEPS)
_add(Extract, _STEPS)
_add(BuildDatastore, _STEPS)
_add(UpdateDatastore, _STEPS)
_add(Personalize, _STEPS)
_add(Evaluate, _STEPS, results.show_scores)
_add(Demo, _MORE, results.show_scores)
_add(Embed, _MORE)
_add(Stack, _MORE)
_add(Sweep, _MORE)
_add(Audit, _MORE, results.show_scores)
_add(Track, _MORE, results.show_tracked)
_add(CreateFederation, _REAL)
_add(CheckFederation, _REAL, results.show_facts)
_add(RunFederation, _REAL, results.show_path)
_add(CheckSite, _REAL, sites.show_check)
_add(ServeSite, _REAL)
_add(AnswerMessage, _REAL, sites.show_answer)
app.command("new", cls=Command, rich_help_panel=_OWN)(new.command)
app.command("check", cls=Command, rich_help_panel=_OWN)(check.command)
app.command("list", cls=Command, rich_help_panel=_LOOK_UP)(listing.command)
app.command("doctor", cls=Command, rich_help_panel=_LOOK_UP)(doctor.command)


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
        os.environ["PFL_ACCELERATED"] = "0"  # worker processes inherit it; see pflcli/core/engine/backend.py
