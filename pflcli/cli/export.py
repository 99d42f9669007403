"""``pfl export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pflcli.cli import completion, console, hardware_options, shared
from pflcli.cli.predict import Weights

Client = Annotated[
    str,
    typer.Option(
        help="Export the model of the client of this name.", metavar="NAME", autocompletion=completion.clients
    ),
]
Out = Annotated[Path, typer.Option("--out", "-o", help="Write the files to this folder.", metavar="DIR")]


def command(
    source: Annotated[
        Path,
        typer.Argument(
            help="Export a model by which a client of these predictions answers.",
            metavar="PREDICTIONS",
            autocompletion=completion.artifacts("predictions"),
        ),
    ],
    client: Client,
    out: Out,
    weights: Weights = None,
    device: hardware_options.Device = "auto",
    threads: hardware_options.Threads = 0,
    engine: hardware_options.Engine = "auto",
    config_file: shared.Config = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace a folder that pfl export has written.")] = False,
    as_json: shared.Json = False,
    quiet: shared.Quiet = False,
    verbose: shared.Verbose = False,
) -> None:
    """Write one client's model to a folder that is used without pfl: ONNX, the store of kNN-Per, and a script.

    A store contains the client's data. Needs `pip install 'pflcli\\[export]'`.

    Examples:
        pfl export runs/knn-per --client w0012 -o model
        pfl export runs/fedavg --client w0012 -o model --force
    """
    from pflcli.commands.export import export
    from pflcli.execution import Execution

    reporter = console.Console(quiet=quiet, verbose=verbose)
    exported = export(
        source,
        out,
        client=client,
        weights=weights,
        execution=Execution(force=force, device=device, engine=engine, threads=threads, reporter=reporter),
    )
    if as_json:
        console.data({"path": str(out), "files": dict(exported.files), **exported.model})
    else:
        console.lines([str(out)])
