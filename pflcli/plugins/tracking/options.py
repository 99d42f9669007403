"""The options of ``pfl track``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from pflcli.options import completion
from pflcli.options.declaration import PATHS, FilePath, Options, artifacts_argument, out_option


@dataclass(frozen=True)
class Track(Options):
    r"""Write runs of stored comparisons for TensorBoard, MLflow or Weights & Biases, without a connection.

    Needs `pip install 'pflcli\[tensorboard]'`, `'pflcli\[mlflow]'` or `'pflcli\[wandb]'`.

    Examples:
        pfl track runs/c --to tensorboard -o tracked
        pfl track runs/c runs/b --to mlflow -o tracked
    """

    NAME: ClassVar[str] = "track"
    HAS_DRY_RUN: ClassVar[bool] = False
    FORCE_HELP: ClassVar[str] = "Also write runs again that have not changed."

    sources: Annotated[
        Sequence[Path | str],
        PATHS,
        artifacts_argument(
            "Write these comparisons and evaluations with all their runs, or these predictions and backbones.",
            "comparison",
            "evaluation",
            "predictions",
            "backbone",
        ),
    ]
    out: Annotated[FilePath, out_option("Write the runs to this folder.")]
    _: KW_ONLY
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="Write for this tool: tensorboard, mlflow or wandb.",
            metavar="TOOL",
            autocompletion=completion.words("tensorboard", "mlflow", "wandb"),
        ),
    ]
