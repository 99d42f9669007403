"""``pfl import``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pflcli.cli import console
from pflcli.cli import options as o


def command(
    data: Annotated[
        Path,
        typer.Argument(
            help="A .csv, .tsv, .parquet, .npz, .h5 or .hdf5 file, or a folder CLIENT/LABEL/IMAGE.", metavar="DATA"
        ),
    ],
    out: o.Out,
    client: Annotated[
        str | None,
        typer.Option(
            help="Column or array that says whose a sample is; 'none': nobody's.", metavar="COL", show_default=False
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(help="Column or array that holds the class.", metavar="COL", show_default=False),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            help="Columns to learn from, or one array.", metavar="COL,COL", show_default="all other numbers, or x"
        ),
    ] = None,
    missing: Annotated[
        str,
        typer.Option(
            help="error, or drop the samples that lack a value.",
            metavar="NAME",
            autocompletion=lambda: ["error", "drop"],
        ),
    ] = "error",
    standardize: Annotated[
        bool, typer.Option("--standardize", help="Bring each feature to mean 0, standard deviation 1.")
    ] = False,
    resize: Annotated[
        int | None, typer.Option(help="Side of the images in pixels.", metavar="N", show_default="as they are")
    ] = None,
    delimiter: Annotated[
        str | None,
        typer.Option(help="What parts the columns, such as ';' or tab.", metavar="CHAR", show_default="by suffix"),
    ] = None,
    config_file: o.Config = None,
    force: o.Force = False,
    dry_run: o.DryRun = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Take in your own data, checked, for `pfl partition`.

    Example: pfl import visits.csv --client hospital --label outcome -o runs/data
    """
    from pflcli.steps.import_data import import_data

    outcome = import_data(
        data,
        out,
        client=client,
        label=label,
        features=features,
        missing=missing,
        standardize=standardize,
        resize=resize,
        delimiter=delimiter,
        manner=o.manner(force=force, dry_run=dry_run, quiet=quiet, verbose=verbose),
    )
    console.result(outcome, as_json=as_json)
