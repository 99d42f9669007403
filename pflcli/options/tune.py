"""The options of ``pfl tune``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar

import typer

from pflcli.core import config
from pflcli.core.tasks import RANKING
from pflcli.options import completion
from pflcli.options.declaration import (
    METHOD,
    ArtifactPath,
    Choices,
    FilePath,
    InitialWeights,
    Options,
    Seed,
    Set,
    Typed,
    as_pairs,
    merge_with_file,
    out_option,
)


@dataclass(frozen=True)
class Tune(Options):
    """Choose options and training settings of a method on validation samples.

    Every trial is an ordinary artifact. With 20 rounds or more, trials run a quarter of them, and the best two of these
    all. Pass DIR/tuning/best.toml to --config of personalize or compare.

    Examples:
        pfl tune ditto runs/p -o runs/t --search lr=0.03,0.1 --search lam=0.1,1
        pfl tune knn-per runs/d -o runs/t2 --search k=5,10 --metric log_loss
    """

    NAME: ClassVar[str] = "tune"
    HARDWARE: ClassVar[tuple[str, ...]] = ("device", "threads", "engine", "jobs")
    TRAINING_DEFAULT: ClassVar[str] = "that of the backbone, if there is one"

    method: Annotated[
        str,
        METHOD,
        typer.Argument(help="Tune this method (`pfl list methods`).", autocompletion=completion.names("methods")),
    ]
    source: Annotated[
        ArtifactPath,
        typer.Argument(
            help="Tune on this partition, or on a backbone or datastore made from it.",
            autocompletion=completion.artifacts(*completion.SOURCES),
        ),
    ]
    out: Annotated[FilePath, out_option("Write all artifacts to this folder; the result is its subfolder tuning/.")]
    _: KW_ONLY
    settings: Mapping[str, Any] | None = None
    search: Annotated[
        Mapping[str, Any] | None,
        Typed(list[str], lambda typed: config.parse_assignments(typed, "--search"), as_pairs),
        typer.Option(
            "--search",
            help="Try these values of an option or training setting; repeat it for more. With random and optuna also"
            " a range, 0.01..0.3.",
            metavar="KEY=VALUE,VALUE",
            callback=merge_with_file,
            show_default="learning rates and the method's own grid",
        ),
    ] = None
    sampler: Annotated[
        str,
        Choices(("grid", "random", "optuna")),
        typer.Option(
            help="Propose trials by this sampler: grid, random, or optuna (pip install 'pflcli\\[tune]').",
            metavar="NAME",
        ),
    ] = "grid"
    trials: Annotated[int, typer.Option(help="Run at most this many trials.", min=1, metavar="N")] = 20
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Start no new trial once all trials together have taken this many minutes.",
            metavar="M",
            show_default="no limit",
        ),
    ] = None
    metric: Annotated[
        str | None,
        typer.Option(
            help="Choose by this metric on validation samples, such as auroc or log_loss.",
            metavar="NAME",
            show_default="accuracy",
            autocompletion=completion.words(*RANKING),
        ),
    ] = None
    weights: InitialWeights = None
    options: Set = None
    seed: Seed = None
