"""The options of ``pfl compare``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar

import typer

from pflcli.core import config
from pflcli.options import completion
from pflcli.options.declaration import (
    METHODS,
    RAY,
    SEEDS,
    WORDS,
    ArtifactPaths,
    Baseline,
    Coverage,
    FilePath,
    GroupScores,
    InitialWeights,
    Link,
    Metrics,
    Options,
    Positive,
    Target,
    Typed,
    artifacts_argument,
    as_pairs,
    merge_with_file,
    out_option,
)


@dataclass(frozen=True)
class Compare(Options):
    """Run several methods with several seeds, and summarize them in one table and picture.

    Existing artifacts are reused.

    Examples:
        pfl compare runs/p -o runs/c --methods fedavg,local --seeds 0,1,2
        pfl compare runs/p -o runs/c2 --methods fedavg,ditto --set ditto.lam=0.5
    """

    NAME: ClassVar[str] = "compare"
    HARDWARE: ClassVar[tuple[str, ...]] = ("device", "threads", "engine", "jobs", *RAY)
    TRAINING_DEFAULT: ClassVar[str] = ""

    sources: Annotated[
        ArtifactPaths,
        artifacts_argument(
            "Compare on this partition, or on several, each with the seed that it was made with.", "partition"
        ),
    ]
    out: Annotated[
        FilePath, out_option("Write all artifacts to this folder; the table goes to its subfolder comparison/.")
    ]
    _: KW_ONLY
    settings: Mapping[str, Any] | None = None
    methods: Annotated[
        Sequence[str],
        METHODS,
        typer.Option(
            help="Run these methods or files of methods, separated by commas, or all; stack pools the others'"
            " predictions. METHOD@NAME is a variant with its own --set options.",
            metavar="NAME,NAME",
            autocompletion=completion.comma_separated(completion.names("methods", "all", "stack")),
        ),
    ] = ("all",)
    references: Annotated[
        bool,
        typer.Option(
            "--references/--no-references",
            help="Compare constant, pooled, local, alone and alone-pooled too, as references that are marked in tables"
            " and not ranked; the last two only if they are cheap beside local.",
            rich_help_panel="References",  # beside its long second name, others' names would be cut
        ),
    ] = True
    seeds: Annotated[
        Sequence[int] | None,
        SEEDS,
        typer.Option(
            help="Train with each of these seeds, separated by commas (with one partition only).",
            metavar="N,N",
            show_default="that of the partition",
        ),
    ] = None
    until_decided: Annotated[
        int | None,
        typer.Option(
            help="Add seeds until the best method is shown to be better than every other one, or until there are this"
            " many. Intervals and tests are corrected for the repeated looks.",
            min=2,
            metavar="MAX",
            show_default="no seed is added",
        ),
    ] = None
    options: Annotated[
        Mapping[str, Mapping[str, Any]] | None,
        Typed(list[str], lambda typed: config.group_by_owner(config.parse_assignments(typed)), as_pairs),
        typer.Option(
            "--set",
            help="Set an option or a training setting of one method, such as ditto.lam=0.5; repeat it for more.",
            metavar="METHOD.KEY=VALUE",
            callback=merge_with_file,
        ),
    ] = None
    weights: InitialWeights = None
    baseline: Baseline = "fedavg"
    target: Target = None
    link: Link = None
    metrics: Metrics = None
    positive: Positive = None
    coverage: Coverage = None
    group_scores: GroupScores = None
    tune: Annotated[
        int | None,
        typer.Option(
            help="First tune every method, as `pfl tune` does, with at most this many trials: choose its options and"
            " training settings by --metric on validation samples. fedavg is tuned first.",
            min=1,
            metavar="N",
            show_default="no tuning",
        ),
    ] = None
    only: Annotated[
        Sequence[str] | None,
        WORDS,
        typer.Option(
            help="Make only the artifacts in these folders of DIR, such as seed-0/ditto, and no table.",
            metavar="PATH,PATH",
            show_default="all, and the table",
        ),
    ] = None
