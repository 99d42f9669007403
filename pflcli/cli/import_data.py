"""``pfl import``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pflcli.cli import completion, samples, shared

if TYPE_CHECKING:
    from pflcli.artifacts.make import Outcome
    from pflcli.execution import Execution

_STANDARDIZE = ("federation", "client")
_TRUTHS: dict[str | None, str | None] = {"true": "federation", "false": None}
"""What a configuration file may say of ``standardize``."""


class Command(shared.Command):
    """Reads ``--standardize`` without a value as ``--standardize federation``; Typer alone requires a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line after the missing value has been filled in."""
        behind = [*args[1:], ""]
        alone = [
            arg == "--standardize" and value not in _STANDARDIZE and "--" not in args[:place]
            for place, (arg, value) in enumerate(zip(args, behind, strict=True))
        ]
        explicit = [f"{arg}=federation" if is_alone else arg for arg, is_alone in zip(args, alone, strict=True)]
        parsed: list[str] = super().parse_args(ctx, explicit)
        return parsed


@shared.makes_artifact()
def command(
    data: Annotated[
        Path,
        typer.Argument(
            help="Read this .csv, .tsv, .parquet, .npz, .h5 or .hdf5 file, or this folder CLIENT/LABEL/IMAGE.",
            metavar="DATA",
        ),
    ],
    out: shared.Out,
    execution: Execution,
    client: Annotated[
        str | None,
        typer.Option(
            help="Take each sample's client from this column or array; 'none' if samples belong to no client yet.",
            metavar="COL",
            show_default=False,
        ),
    ] = None,
    label: samples.Label = None,
    classes: Annotated[
        bool,
        typer.Option(
            "--classes",
            help="Take each distinct integer of the label as a class, even if there are many with few samples each.",
        ),
    ] = False,
    features: Annotated[
        str | None,
        typer.Option(
            help="Learn from these columns, or from one array.",
            metavar="COL,COL",
            show_default="all other columns, or x",
        ),
    ] = None,
    categorical: Annotated[
        str | None,
        typer.Option(
            help="Turn each value of these columns (codes or words) into a feature of 0 and 1. 'none' leaves columns of"
            " words out.",
            metavar="COL,COL",
            show_default="columns of words with few different values",
        ),
    ] = None,
    missing: Annotated[
        str | None,
        typer.Option(
            help="Treat missing values: error refuses them; drop leaves their samples out; median fills in the median"
            " of training samples and adds a feature that marks where.",
            metavar="NAME",
            autocompletion=completion.words("error", "drop", "median"),
            show_default="error",
        ),
    ] = None,
    standardize: Annotated[
        str | None,
        typer.Option(
            help="Scale each feature to mean 0 and standard deviation 1. `pfl partition` does it, by the training"
            " samples of all clients (federation, the default without NAME) or by each client's own (client).",
            metavar="[NAME]",
            autocompletion=completion.words(*_STANDARDIZE),
            show_default="no",
        ),
    ] = None,
    split_column: samples.SplitColumn = None,
    group: Annotated[
        str | None,
        typer.Option(
            help="Keep samples with the same value in this column or array, such as the visits of one patient, in one"
            " split; 'none' drops the column of --like.",
            metavar="COL",
            show_default="drawn one by one",
        ),
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(
            help="Split each client's samples by this column or array of numbers or dates: the first train, the last"
            " test; 'none' drops the column of --like.",
            metavar="COL",
            show_default="drawn at random",
        ),
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(
            help="Read new data with the classes, columns and scaling of earlier data: of a dataset, or of its"
            " partition, which has the means and deviations.",
            metavar="ARTIFACT",
            autocompletion=completion.artifacts("dataset", "partition"),
            show_default=False,
        ),
    ] = None,
    layout: samples.Layout = None,
    resize: Annotated[
        int | None,
        typer.Option(
            help="Resize images to this side length in pixels.", metavar="N", show_default="size of the files"
        ),
    ] = None,
    delimiter: samples.Delimiter = None,
) -> Outcome:
    """Check your own data and convert them for `pfl partition`.

    Examples:
        pfl import visits.csv --client hospital --label outcome -o runs/data
        pfl import newer.csv --like runs/data -o runs/newer
    """
    from pflcli.commands.import_data import import_data

    return import_data(
        data,
        out,
        client=client,
        label=label,
        classes=classes,
        features=features,
        categorical=categorical,
        missing=missing,
        standardize=_TRUTHS.get(standardize, standardize),
        split_column=split_column,
        group=group,
        order=order,
        resize=resize,
        delimiter=delimiter,
        layout=layout,
        like=like,
        execution=execution,
    )
