"""The options of ``pfl partition``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from pflcli.core.errors import UsageError
from pflcli.core.wording import as_typed
from pflcli.options import completion
from pflcli.options.declaration import (
    FRACTIONS,
    Choices,
    Download,
    OptionalArtifactPath,
    Options,
    Out,
    Root,
    Set,
    Typed,
    as_file,
    as_names,
    as_path,
    split_words,
)


def dataset_word(value: str | Path) -> str:
    """Return a dataset as it is typed: a name, or the path of an imported one."""
    return as_path(value) if Path(value).is_dir() else as_file("datasets", value)


def _parse_part(text: str) -> tuple[int, int]:
    """Return the numbers in ``1/2``; raises UsageError for anything else."""
    try:
        number, parts = (int(figure) for figure in text.split("/"))
    except ValueError:
        raise UsageError(f"--part {text} does not have the form I/N", "--part 1/2") from None
    return number, parts


def _parse_new_clients(text: str) -> float | list[str]:
    """Return the fraction in ``0.2``, or the names in ``A,B``; a whole number from 1 is a name."""
    try:
        number = float(text)
    except ValueError:
        return split_words(text)
    return [text.strip()] if number.is_integer() and number >= 1 else number


def _as_new_clients(chosen: float | str | Sequence[str]) -> str:
    return as_typed(chosen) if isinstance(chosen, float | int) else as_names(chosen)


@dataclass(frozen=True)
class Partition(Options):
    """Divide the samples of a dataset among clients, and into training, validation and test samples.

    Examples:
        pfl partition writers -o runs/p
        pfl partition runs/data -o runs/q --scheme dirichlet --clients 5
    """

    NAME: ClassVar[str] = "partition"

    dataset: Annotated[
        str | Path,
        Typed(str, text=dataset_word),
        typer.Argument(
            help="Partition this dataset: a name of `pfl list datasets`, or the folder that `pfl import -o` made.",
            metavar="DATASET",
            autocompletion=completion.datasets,
        ),
    ]
    out: Out
    _: KW_ONLY
    scheme: Annotated[
        str,
        Typed(str, text=partial(as_file, "schemes")),
        typer.Option(
            help="Assign samples to clients by this scheme (`pfl list schemes`).",
            autocompletion=completion.names("schemes"),
        ),
    ] = "natural"
    clients: Annotated[
        int | None,
        typer.Option(help="Make this many clients; scheme natural keeps all by default.", min=1, metavar="N"),
    ] = None
    min_samples: Annotated[
        int, typer.Option(help="Move samples until every client has at least this many.", min=0, metavar="N")
    ] = 0
    fractions: Annotated[
        tuple[float, float, float] | None,
        FRACTIONS,
        typer.Option(
            help="Split each client's samples into these fractions for training, validation and test.",
            metavar="F,F,F",
            show_default="0.6,0.2,0.2; with --keep-test 0.8,0.2,0",
        ),
    ] = None
    keep_test: Annotated[
        bool,
        typer.Option(
            "--keep-test", help="Test on the dataset's published test samples, and split the others by --fractions."
        ),
    ] = False
    new_clients: Annotated[
        float | str | Sequence[str],
        Typed(str, _parse_new_clients, _as_new_clients),
        typer.Option(
            help="Keep this fraction (0 to 1) of the clients, or the clients with these names, out of all rounds; they"
            " join after training.",
            metavar="F|NAME,NAME",
        ),
    ] = 0.0
    new_capacity: Annotated[
        float,
        typer.Option(
            help="Keep this fraction (0 to 1) of unseen clients' training and validation samples.", metavar="F"
        ),
    ] = 1.0
    part: Annotated[
        tuple[int, int],
        Typed(str, _parse_part, lambda part: "/".join(map(str, part))),
        typer.Option(help="Take part I of N disjoint random parts of the dataset.", metavar="I/N"),
    ] = (1, 1)
    poison: Annotated[
        str,
        typer.Option(
            help="Poison this share of the clients: flip (labels), scale or random (updates), or none for comparison."
            " They only keep training samples.",
            metavar="SHARE:KIND[:STRENGTH]",
            show_default="no client is poisoned",
        ),
    ] = ""
    standardize_target: Annotated[
        str,
        Choices(("federation", "client")),
        typer.Option(
            help="Train on quantities scaled by the mean and deviation of the training samples of all clients"
            " (federation) or of each client (client). Predictions and scores keep the unit of the target.",
            metavar="NAME",
        ),
    ] = "federation"
    like: Annotated[
        OptionalArtifactPath,
        typer.Option(
            help="Make the partition of one site of this federation: all samples are those of --client, split as the"
            " federation says.",
            metavar="FEDERATION",
            show_default=False,
            autocompletion=completion.artifacts("federation"),
        ),
    ] = None
    client: Annotated[
        str | None,
        typer.Option(help="With --like, the client of the federation whose samples these are.", metavar="NAME"),
    ] = None
    root: Root = None
    download: Download = False
    options: Set = None
    seed: Annotated[int, typer.Option(help="Draw all random numbers from this seed.", min=0, metavar="N")] = 0
    split_seed: Annotated[
        int | None,
        typer.Option(
            help="Draw only the splits from this seed, so that clients keep their samples.",
            show_default="that of --seed",
            min=0,
            metavar="N",
        ),
    ] = None
