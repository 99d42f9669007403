"""The options of ``pfl site columns`` and ``pfl federation columns``: agree on the meaning of columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from pflcli.core.errors import UsageError
from pflcli.options.declaration import (
    PATHS,
    WORDS,
    ArtifactPath,
    FilePath,
    OptionalPath,
    Options,
    Typed,
    artifact_argument,
    as_names,
    out_option,
    split_words,
)


def _parse_units(text: str) -> dict[str, str]:
    """Return the pairs in ``height=mm,weight=kg``; raises UsageError for anything else."""
    pairs = [pair.rpartition("=") for pair in split_words(text)]
    if not pairs or not all(column and unit for column, _, unit in pairs):
        raise UsageError(f"--units {text} does not have the form COL=UNIT,COL=UNIT", "--units height=mm,weight=kg")
    return {column.strip(): unit.strip() for column, _, unit in pairs}


def _as_units(units: Mapping[str, str]) -> str:
    return as_names([f"{column}={unit}" for column, unit in units.items()])


@dataclass(frozen=True)
class SummarizeColumns(Options):
    """Summarize the columns of a site's table for the coordinator, show all of it, and send nothing.

    FILE has names and kinds of columns, words and classes of at least five rows, rounded counts, and rounded means,
    deviations and medians of training samples. It is what leaves the site: give it to the coordinator if you agree.

    Examples:
        pfl site columns own --client a --sites a,b -o a.json
        pfl site columns own --client a --sites a,b --units age=years -o a.json
    """

    NAME: ClassVar[str] = "site columns"
    HAS_DRY_RUN: ClassVar[bool] = False
    HAS_FORCE: ClassVar[bool] = False

    dataset: Annotated[ArtifactPath, artifact_argument("Summarize this dataset of one site.", "dataset")]
    out: Annotated[FilePath, out_option("Write the summary to this file.", "FILE")]
    _: KW_ONLY
    client: Annotated[str, typer.Option(help="Take part under this name, one of --sites.", metavar="NAME")]
    sites: Annotated[
        Sequence[str],
        WORDS,
        typer.Option(
            help="Name all sites of the federation, in the order that all sites type; splits depend on it.",
            metavar="NAME,NAME",
        ),
    ]
    seed: Annotated[
        int, typer.Option(help="Split samples with this seed, which is the same at all sites.", min=0, metavar="N")
    ] = 0
    units: Annotated[
        Mapping[str, str] | None,
        Typed(str, _parse_units, _as_units),
        typer.Option(
            help="State the units of columns; another unit than that of the others is an error.",
            metavar="COL=UNIT,COL=UNIT",
            show_default="not stated",
        ),
    ] = None


@dataclass(frozen=True)
class AgreeOnColumns(Options):
    """Agree on columns, words, classes and scales from the summaries of all sites, as a table for `pfl import --like`.

    It fails, and names site, column and remedy, for all that does not fit. It warns of a site whose mean is far from
    the others', as with centimetres for millimetres.

    Examples:
        pfl federation columns north.json south.json -o agreed.toml
        pfl federation columns north.json south.json --like table.toml -o agreed.toml
    """

    NAME: ClassVar[str] = "federation columns"
    HAS_DRY_RUN: ClassVar[bool] = False
    HAS_FORCE: ClassVar[bool] = False

    summaries: Annotated[
        Path | str | Sequence[Path | str],
        PATHS,
        typer.Argument(help="Read these summaries, one of each site.", metavar="SUMMARY..."),
    ]
    out: Annotated[FilePath, out_option("Write the agreed table to this file, which ends in .toml.", "FILE")]
    _: KW_ONLY
    like: Annotated[
        OptionalPath,
        typer.Option(
            help="Take columns, kinds, units and words from this table, which the coordinator wrote.",
            metavar="FILE",
            show_default="those of most sites",
        ),
    ] = None
