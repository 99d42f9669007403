"""The options of ``pfl import``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from pflcli.core import plugins, tasks
from pflcli.core.wording import PathWord
from pflcli.options import completion
from pflcli.options.declaration import (
    Choices,
    DateFormat,
    FoldCase,
    Label,
    LabelMap,
    Layout,
    OptionalPath,
    Out,
    SplitColumn,
    TableOptions,
    Typed,
    as_columns,
)


def as_source(value: Any) -> str:
    """Return ``data`` as a user types it: a path, or a format and a path."""
    form = re.match("[a-z]+:(?=.)", str(value))
    if form is None or Path(value).exists():
        return PathWord(value)
    return PathWord.of_parts(form.group(), Path(str(value)[form.end() :]))


def _as_sources(value: Any) -> str | list[str]:
    """Return ``data`` as a user types it: one word per file."""
    return as_source(value) if isinstance(value, Path | str) else [as_source(each) for each in value]


_FORMATS = [f" {facts['words']} reads {facts['title']}." for _, facts in plugins.added("FORMATS").values()]
"""A sentence on each format of a plug-in, with what to type."""


@dataclass(frozen=True)
class ImportData(TableOptions):
    """Check your own data and convert them for `pfl partition`.

    Examples:
        pfl import visits.csv --client hospital --label outcome -o runs/data
        pfl import newer.csv --like runs/data -o runs/newer
    """

    NAME: ClassVar[str] = "import"

    data: Annotated[
        Path | str | Sequence[Path | str],
        Typed(list[Path], lambda paths: paths[0] if len(paths) == 1 else paths, _as_sources),
        typer.Argument(
            help="Read this table (.csv, .tsv, .txt, .csv.gz, .xlsx, .parquet, .feather, .dta, .sav or .jsonl), this"
            " .npz, .h5 or .hdf5 file, or this folder CLIENT/LABEL/IMAGE. Several tables, or a folder of tables, have a"
            f" file per client unless --client is given.{''.join(_FORMATS)}",
            metavar="DATA...",
        ),
    ]
    out: Out
    _: KW_ONLY
    client: Annotated[
        str | None,
        typer.Option(
            help="Take each sample's client from this column or array; 'none' if samples belong to no client yet.",
            metavar="COL",
        ),
    ] = None
    label: Label = None
    label_map: LabelMap = None
    task: Annotated[
        str | None,
        typer.Option(
            help="Learn to predict classes (each distinct label, even if labels are many whole numbers, dates, or words"
            " such as NA), a quantity (by squared error; quantity:absolute and quantity:huber are less sensitive to"
            " outliers), quantiles of one, as in quantile:0.1,0.5,0.9, or a count of events (by the likelihood of"
            " Poisson's distribution).",
            metavar="NAME",
            show_default="classes, if labels look like them",
            autocompletion=completion.words(*tasks.KINDS),
        ),
    ] = None
    unit: Annotated[
        str | None,
        typer.Option(help="Name the unit of labels that are numbers, such as EUR, for tables.", metavar="NAME"),
    ] = None
    features: Annotated[
        str | Sequence[str] | None,
        Typed(str, text=as_columns),
        typer.Option(
            help="Learn from these columns, or from one array.",
            metavar="COL,COL",
            show_default="all other columns, or x",
        ),
    ] = None
    leave_out: Annotated[
        str | Sequence[str] | None,
        Typed(str, text=as_columns),
        typer.Option(
            help="Learn from all columns but these.",
            metavar="COL,COL",
        ),
    ] = None
    keep: Annotated[
        str | Sequence[str] | None,
        Typed(str, text=as_columns),
        typer.Option(
            help="Keep these columns or arrays with the samples, for scores by group (--group-scores), and do not learn"
            " from them; 'none' drops those of --like.",
            metavar="COL,COL",
            show_default="none",
        ),
    ] = None
    categorical: Annotated[
        str | Sequence[str] | None,
        Typed(str, text=as_columns),
        typer.Option(
            help="One-hot encode these columns of codes or words; 'none' drops columns of words.",
            metavar="COL,COL",
            show_default="columns with few different words",
        ),
    ] = None
    missing: Annotated[
        str | None,
        Choices(("error", "drop", "median")),
        typer.Option(
            help="Treat missing values: error refuses them; drop removes their samples; median fills in the median"
            " of training samples and adds a feature that marks missing values.",
            metavar="NAME",
            show_default="error",
        ),
    ] = None
    standardize: Annotated[
        bool | str | None,
        Typed(
            str,
            lambda word: {"true": "federation", "false": None}.get(word, word),
            lambda value: "federation" if value is True else str(value),
        ),
        Choices(("federation", "client")),
        typer.Option(
            help="Scale each feature to mean 0 and standard deviation 1. `pfl partition` computes the scale from the"
            " training samples of all clients (federation, the default without NAME) or of each client (client).",
            metavar="[NAME]",
            show_default="no",
        ),
    ] = None
    split_column: SplitColumn = None
    group: Annotated[
        str | None,
        typer.Option(
            help="Keep samples with the same value in this column or array, such as the visits of one patient, in one"
            " split; 'none' drops the column of --like.",
            metavar="COL",
            show_default="drawn one by one",
        ),
    ] = None
    order: Annotated[
        str | None,
        typer.Option(
            help="Split each client's samples by this column or array of numbers or dates: the earliest for training,"
            " the latest for test; 'none' drops the column of --like.",
            metavar="COL",
            show_default="drawn at random",
        ),
    ] = None
    window: Annotated[
        int | None,
        typer.Option(
            help="Cut the record of each client, its rows in --order, into windows of this many rows. A sample is a"
            " window of all columns, --label among them; 0 if each row is a sample of its own.",
            min=0,
            metavar="N",
            show_default="rows are samples; long records are asked about",
        ),
    ] = None
    horizon: Annotated[
        int | None,
        typer.Option(
            help="Take as label that of this many rows after the window.", min=1, metavar="N", show_default="1"
        ),
    ] = None
    every: Annotated[
        int | None, typer.Option(help="Begin a window every N rows.", min=1, metavar="N", show_default="1")
    ] = None
    like: Annotated[
        OptionalPath,
        typer.Option(
            help="Read new data with the task, classes, columns and scaling of this dataset, of its partition, which"
            " also contains means and standard deviations, or of a table that sites agree on (.toml).",
            metavar="ARTIFACT",
            autocompletion=completion.artifacts("dataset", "partition"),
        ),
    ] = None
    layout: Layout = None
    samples: Annotated[
        str | None,
        Choices(("images", "series", "numbers")),
        typer.Option(
            help="Read arrays as images (pixels from 0 to 255, 0 to 1 or -1 to 1, stored with 8 bits), as series, or as"
            " numbers that stay as they are.",
            metavar="KIND",
            show_default="as type, shape and values tell",
        ),
    ] = None
    resize: Annotated[
        int | None,
        typer.Option(
            help="Resize images to this side length in pixels.",
            min=1,
            max=4096,
            metavar="N",
            show_default="size of the files",
            rich_help_panel="Images",  # beside their ranges, long names of other options would be cut
        ),
    ] = None
    convert: Annotated[
        str | None,
        Choices(("grey", "rgb", "grey12")),
        typer.Option(
            help="Make all images grey or rgb. Pixels of 16 bits are divided by 257 (with grey12, those of 12 bits by"
            " 16), and transparent images are laid on white.",
            metavar="NAME",
            show_default="as in the files, which must be alike",
            rich_help_panel="Images",
        ),
    ] = None
    frame: Annotated[
        int | None,
        typer.Option(
            help="Read this frame, counted from 1, of animated images and of images with several pages.",
            min=1,
            metavar="N",
            show_default="such images are refused",
            rich_help_panel="Images",
        ),
    ] = None
    embeddings: Annotated[
        bool,
        typer.Option(
            "--embeddings",
            help="Treat the features as embeddings that a frozen network computed elsewhere; artifacts of different"
            " encoders cannot be mixed.",
        ),
    ] = False
    encoder_name: Annotated[
        str | None,
        typer.Option(help="Record this name of the network that computed the embeddings.", metavar="NAME"),
    ] = None
    date_format: DateFormat = None
    fold_case: FoldCase = None
    drop_duplicates: Annotated[
        bool,
        typer.Option(
            "--drop-duplicates",
            help="Keep only the first of several samples that are equal in features, label and client.",
        ),
    ] = False
