"""``pfl federation``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pflcli.cli import console
from pflcli.cli.from_options import Json, Quiet, Verbose
from pflcli.core.errors import UsageError, closest
from pflcli.core.execution import Execution
from pflcli.options import completion
from pflcli.options.declaration import ChosenMethod, ChosenSeed

_ACTIONS = ("create", "check", "run")


def command(
    action: Annotated[
        str,
        typer.Argument(
            help="create makes a federation of predictions, check shows what it agrees on, run runs its server.",
            metavar="create|check|run",
            autocompletion=completion.words(*_ACTIONS),
        ),
    ],
    source: Annotated[
        Path,
        typer.Argument(
            help="For create, the predictions of the chosen method; otherwise the federation.",
            metavar="PREDICTIONS|FEDERATION",
            autocompletion=completion.artifacts("predictions", "federation"),
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Write the federation, or the server's state, to this folder.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    exchange: Annotated[
        Path | None,
        typer.Option(
            "--at", help="Exchange messages with the sites in this folder.", metavar="DIR", show_default=False
        ),
    ] = None,
    patience: Annotated[
        float | None,
        typer.Option(
            help="Close a round without the sites that have not answered after this many seconds.",
            metavar="SECONDS",
            show_default="wait for all",
        ),
    ] = None,
    at_least: Annotated[
        int | None,
        typer.Option(
            help="Close a round only if this many sites have answered when the patience is over.",
            metavar="N",
            show_default="half of the sites that are asked",
        ),
    ] = None,
    method: ChosenMethod = None,
    seed: ChosenSeed = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace another federation at --out.")] = False,
    threads: Annotated[int, typer.Option(help="Use this many threads; 0 uses one per core.", metavar="N")] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run a chosen method among real sites: what they agree on, and the server, which has no samples.

    Messages are files in a folder, which any program may carry. The server and the sites (`pfl site`) have the bytes of
    the simulation.

    Examples:
        pfl federation create runs/c --method fedala --seed 0 -o fed
        pfl federation run fed --at exchange -o server
    """
    from pflcli.artifacts.open_by_path import Chosen
    from pflcli.commands import federate

    reporter = console.Console(quiet=quiet, verbose=verbose)
    execution = Execution(threads=threads, force=force, reporter=reporter)
    if action not in _ACTIONS:
        raise UsageError(f"unknown action '{action}'", closest(action, _ACTIONS))
    if action != "check" and out is None:
        raise UsageError(f"pfl federation {action} needs a folder for its result", "-o DIR")
    if (action == "run") != (exchange is not None):
        raise UsageError(
            "--at belongs to pfl federation run, which needs it", "pfl federation run FEDERATION --at DIR -o DIR"
        )
    if patience is not None and action != "run":
        raise UsageError("--patience belongs to pfl federation run", f"leave out --patience {patience:g}")
    if at_least is not None and action != "run":
        raise UsageError("--at-least belongs to pfl federation run", f"leave out --at-least {at_least}")
    for name, value in (("--method", method), ("--seed", seed)):
        if value is not None and action != "create":
            raise UsageError(f"{name} belongs to pfl federation create", f"leave out {name} {value}")
    if force and action != "create":
        raise UsageError("--force belongs to pfl federation create", "leave out --force")
    if action == "check" and out is not None:
        raise UsageError("pfl federation check writes nothing", f"leave out -o {out}")
    if action == "create" and out is not None:
        console.result(federate.create(source, out, execution, chosen=Chosen(method, seed)), as_json=as_json)
    elif action == "run" and out is not None and exchange is not None:
        result = federate.run(source, exchange, out, execution, patience=patience, at_least=at_least)
        if as_json:
            console.data(result)
        else:
            console.lines([result["path"]])
    else:
        facts = federate.describe(source)
        if as_json:
            console.data(facts)
        else:
            console.facts(facts)
