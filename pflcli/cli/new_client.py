"""``pfl new-client``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pflcli.cli import completion, samples, shared
from pflcli.cli.predict import Weights

if TYPE_CHECKING:
    from pflcli.artifacts.make import Outcome
    from pflcli.execution import Execution


@shared.makes_artifact("device", "threads", "engine")
def command(
    source: Annotated[
        Path,
        typer.Argument(
            help="Add the client to these predictions.",
            metavar="PREDICTIONS",
            autocompletion=completion.artifacts("predictions"),
        ),
    ],
    data: Annotated[
        Path,
        typer.Argument(
            help="Read the client's samples from this .csv, .tsv, .parquet, .npz, .h5 or .hdf5 file, or from this"
            " folder LABEL/IMAGE.",
            metavar="DATA",
        ),
    ],
    client: Annotated[str, typer.Option(help="Give the client this name.", metavar="NAME")],
    out: shared.Out,
    execution: Execution,
    label: samples.Label = None,
    features: Annotated[
        str | None, typer.Option(help="Take the samples from this array of DATA.", metavar="NAME", show_default="x")
    ] = None,
    split_column: samples.SplitColumn = None,
    fractions: Annotated[
        str | None,
        typer.Option(
            help="Split the samples into these fractions for training, validation and test.",
            metavar="F,F,F",
            show_default="those of the partition",
        ),
    ] = None,
    layout: samples.Layout = None,
    delimiter: samples.Delimiter = None,
    weights: Weights = None,
) -> Outcome:
    """Serve a client that comes after the rounds from its own samples, without a round, and add its predictions.

    Examples:
        pfl new-client runs/knn-per me.npz --client me -o runs/with-me
        pfl new-client runs/fedavg me.npz --client me -o runs/me --split-column use
    """
    from pflcli.commands.new_client import new_client

    return new_client(
        source,
        data,
        out,
        client=client,
        label=label,
        features=features,
        split_column=split_column,
        fractions=None if fractions is None else samples.fractions(fractions),
        layout=layout,
        delimiter=delimiter,
        weights=weights,
        execution=execution,
    )
