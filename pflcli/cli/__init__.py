"""The command line: options, help and output, in one short file per command."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from pflcli import __version__
from pflcli.cli import (
    audit,
    build_datastore,
    compare,
    demo,
    doctor,
    evaluate,
    export,
    extract,
    import_data,
    listing,
    new_client,
    partition,
    personalize,
    predict,
    report,
    shared,
    show,
    stack,
    sweep,
    train_global,
    tune,
    update_datastore,
)

_SUMMARY = "Find out which personalized federated learning method works best on your data, by how much, and for whom."

app = typer.Typer(
    name="pfl",
    help=_SUMMARY,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)

_CHAIN, _USE, _LOOK = "Make artifacts", "Use them", "Look at them"
app.command("import", cls=import_data.Command, rich_help_panel=_CHAIN)(import_data.command)
app.command("partition", cls=shared.Command, rich_help_panel=_CHAIN)(partition.command)
app.command("train-global", cls=shared.Command, rich_help_panel=_CHAIN)(train_global.command)
app.command("extract", cls=shared.Command, rich_help_panel=_CHAIN)(extract.command)
app.command("build-datastore", cls=shared.Command, rich_help_panel=_CHAIN)(build_datastore.command)
app.command("update-datastore", cls=shared.Command, rich_help_panel=_CHAIN)(update_datastore.command)
app.command("personalize", cls=shared.Command, rich_help_panel=_CHAIN)(personalize.command)
app.command("stack", cls=shared.Command, rich_help_panel=_CHAIN)(stack.command)
app.command("evaluate", cls=shared.Command, rich_help_panel=_CHAIN)(evaluate.command)
app.command("audit", cls=shared.Command, rich_help_panel=_CHAIN)(audit.command)
app.command("compare", cls=compare.Command, rich_help_panel=_CHAIN)(compare.command)
app.command("demo", cls=shared.Command, rich_help_panel=_CHAIN)(demo.command)
app.command("tune", cls=shared.Command, rich_help_panel=_CHAIN)(tune.command)
app.command("sweep", cls=shared.Command, rich_help_panel=_CHAIN)(sweep.command)
app.command("new-client", cls=shared.Command, rich_help_panel=_USE)(new_client.command)
app.command("predict", cls=shared.Command, rich_help_panel=_USE)(predict.command)
app.command("export", cls=shared.Command, rich_help_panel=_USE)(export.command)
app.command("report", cls=shared.Command, rich_help_panel=_LOOK)(report.command)
app.command("show", cls=shared.Command, rich_help_panel=_LOOK)(show.command)
app.command("list", cls=shared.Command, rich_help_panel=_LOOK)(listing.command)
app.command("doctor", cls=shared.Command, rich_help_panel=_LOOK)(doctor.command)


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
        bool, typer.Option(help="Use compiled loops where they are faster; without them PyTorch and NumPy compute all.")
    ] = True,
) -> None:
    if not accelerated:
        os.environ["PFL_ACCELERATED"] = "0"  # which worker processes inherit; see pflcli/engine/backend.py
