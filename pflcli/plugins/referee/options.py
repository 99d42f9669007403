"""The options of ``pfl import-predictions``."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

import typer

from pflcli.options import completion
from pflcli.options.declaration import PATH, ArtifactPath, FilePath, Options, Out, Seed


@dataclass(frozen=True)
class ImportPredictions(Options):
    """Take the probabilities or numbers that another tool predicted for the samples of a partition, to score them.

    A CSV file has the columns client, sample, split and p(CLASS) for each class, or prediction if labels are numbers;
    an NPZ file has the arrays client, sample, split and p, with a column per class. Clients are named as in clients.csv
    of the partition, and sample is the number of a sample in samples.h5. All test samples are needed; validation and
    training samples are optional, but complete if there are any.

    Examples:
        pfl import-predictions p.csv --like runs/p --name theirs -o runs/theirs
        pfl import-predictions p.npz --like runs/p --name theirs --seed 1 -o runs/t1
    """

    NAME: ClassVar[str] = "import-predictions"

    data: Annotated[FilePath, PATH, typer.Argument(help="Read this CSV or NPZ file.", metavar="DATA")]
    out: Out
    _: KW_ONLY
    like: Annotated[
        ArtifactPath,
        PATH,
        typer.Option(
            help="Take samples and labels from this partition, for which the other tool predicted.",
            metavar="PARTITION",
            autocompletion=completion.artifacts("partition"),
        ),
    ]
    name: Annotated[
        str, typer.Option(help="Call the method by this name, which is not that of a method of pfl.", metavar="NAME")
    ]
    seed: Seed = None
