"""``pfl partition``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pflcli import config
from pflcli.cli import completion, samples, shared
from pflcli.errors import UsageError

if TYPE_CHECKING:
    from pflcli.artifacts.make import Outcome
    from pflcli.execution import Execution


@shared.makes_artifact()
def command(
    dataset: Annotated[
        str,
        typer.Argument(
            help="Partition this dataset: a name of `pfl list datasets`, or the folder that `pfl import -o` made.",
            metavar="DATASET",
            autocompletion=completion.datasets,
        ),
    ],
    out: shared.Out,
    execution: Execution,
    scheme: Annotated[
        str,
        typer.Option(
            help="Assign samples to clients by this scheme (`pfl list schemes`).",
            autocompletion=completion.names("schemes"),
        ),
    ] = "natural",
    clients: Annotated[
        int | None, typer.Option(help="Make this many clients; scheme natural keeps all by default.", metavar="N")
    ] = None,
    min_samples: Annotated[
        int, typer.Option(help="Move samples until every client has at least this many.", metavar="N")
    ] = 0,
    fractions: Annotated[
        str | None,
        typer.Option(
            help="Split each client's samples into these fractions for training, validation and test.",
            metavar="F,F,F",
            show_default="0.6,0.2,0.2; with --keep-test 0.8,0.2,0",
        ),
    ] = None,
    keep_test: Annotated[
        bool,
        typer.Option(
            "--keep-test", help="Test on the dataset's published test samples, and split the others by --fractions."
        ),
    ] = False,
    new_clients: Annotated[
        float,
        typer.Option(
            help="Keep this fraction (0 to 1) of the clients out of all rounds; they join after training.", metavar="F"
        ),
    ] = 0.0,
    new_capacity: Annotated[
        float,
        typer.Option(
            help="Let unseen clients keep this fraction (0 to 1) of their training and validation samples.", metavar="F"
        ),
    ] = 1.0,
    part: Annotated[
        str, typer.Option(help="Take part I of N disjoint random parts of the dataset.", metavar="I/N")
    ] = "1/1",
    poison: Annotated[
        str,
        typer.Option(
            help="Poison this share of the clients: flip (labels), scale or random (updates), or none, to compare; "
            "they keep their training samples alone.",
            metavar="SHARE:KIND[:STRENGTH]",
            show_default="no client is poisoned",
        ),
    ] = "",
    root: Annotated[
        Path | None, typer.Option(help="Read the dataset's files from this folder.", metavar="DIR", show_default=False)
    ] = None,
    download: Annotated[bool, typer.Option("--download", help="Download the dataset into --root.")] = False,
    options: shared.Set = None,
    seed: Annotated[int, typer.Option(help="Draw all random numbers from this seed.", min=0, metavar="N")] = 0,
    split_seed: Annotated[
        int | None,
        typer.Option(
            help="Draw only the splits from this seed, so that clients keep their samples.",
            show_default="that of --seed",
            min=0,
            metavar="N",
        ),
    ] = None,
) -> Outcome:
    """Divide the samples of a dataset among clients, and into training, validation and test samples.

    Examples:
        pfl partition writers -o runs/p
        pfl partition runs/data -o runs/q --scheme dirichlet --clients 5
    """
    from pflcli.commands.partition import partition

    try:
        number, parts = (int(figure) for figure in part.split("/"))
    except ValueError:
        raise UsageError(f"--part {part} is not of the form I/N", "--part 1/2") from None
    return partition(
        dataset,
        out,
        scheme=scheme,
        options=config.assignments(options or []),
        clients=clients,
        min_samples=min_samples,
        fractions=None if fractions is None else samples.fractions(fractions),
        keep_test=keep_test,
        new_clients=new_clients,
        new_capacity=new_capacity,
        part=(number, parts),
        poison=poison,
        root=root,
        download=download,
        seed=seed,
        split_seed=split_seed,
        execution=execution,
    )
