"""``pfl build-datastore``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pflcli.cli import console
from pflcli.cli import options as o


def command(
    source: Annotated[Path, typer.Argument(help="Embeddings.", metavar="EMBEDDINGS")],
    out: o.Out,
    capacity: Annotated[
        float, typer.Option(help="Fraction of each client's samples that its store keeps.", metavar="F")
    ] = 1.0,
    seed: o.Seed = None,
    config_file: o.Config = None,
    force: o.Force = False,
    dry_run: o.DryRun = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Build one nearest-neighbour index for each client.

    Example: pfl build-datastore runs/e -o runs/d
    """
    from pflcli.steps.build_datastore import build_datastore

    manner = o.manner(force=force, dry_run=dry_run, quiet=quiet, verbose=verbose)
    console.result(build_datastore(source, out, capacity=capacity, seed=seed, manner=manner), as_json=as_json)
