"""``pfl evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pflcli.cli import completion, console, shared

if TYPE_CHECKING:
    from pflcli.artifacts.make import Outcome
    from pflcli.execution import Execution


@shared.makes_artifact()
def command(
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="Score these predictions, one or more artifacts.",
            metavar="PREDICTIONS...",
            autocompletion=completion.artifacts("predictions"),
        ),
    ],
    out: shared.Out,
    execution: Execution,
    split: Annotated[
        str,
        typer.Option(
            help="Score this split: test, validation, or train (after personalize --answer-train).",
            autocompletion=completion.words("test", "validation", "train"),
        ),
    ] = "test",
    baseline: shared.Baseline = "fedavg",
    target: shared.Target = None,
    link: shared.Link = None,
    metric: shared.Metrics = None,
    positive: shared.Positive = None,
    method: shared.ChosenMethod = None,
    seed: shared.ChosenSeed = None,
    quiet: shared.Quiet = False,
) -> Outcome:
    """Score predictions for each client and over all clients, methods and seeds.

    Examples:
        pfl evaluate runs/fedavg runs/knn-per -o runs/evaluation
        pfl evaluate runs/fedavg runs/knn-per -o runs/validation --split validation
    """
    from pflcli.artifacts.reader import open_artifact
    from pflcli.commands.evaluate import evaluate

    outcome = evaluate(
        sources,
        out,
        split=split,
        baseline=baseline,
        target=target,
        link=link,
        metrics=["accuracy"] if metric is None else shared.words(metric),
        positive=positive,
        method=method,
        seed=seed,
        execution=execution,
    )
    if not quiet and not execution.dry_run:
        console.scores(open_artifact(out), to_stderr=True)
    return outcome
