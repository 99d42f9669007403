"""``pfl audit``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pflcli.cli import completion, console, predict, shared

if TYPE_CHECKING:
    from pflcli.artifacts.make import Outcome
    from pflcli.execution import Execution


Invert = Annotated[
    int,
    typer.Option(
        help="Also draw what the models of this many clients, the most exposed ones, take for each class with the "
        "greatest certainty; of images only.",
        min=0,
        metavar="N",
    ),
]
Canaries = Annotated[
    int,
    typer.Option(
        help="Also train the rounds of differential privacy again, with this many clients of random updates beside the "
        "others (200, say), to bound epsilon from below.",
        min=0,
        metavar="N",
    ),
]

Answers = Annotated[
    str | None,
    typer.Option(
        help="Let the attacker see answers alone, as pfl predict --answers gives them: full (probabilities), "
        "rounded:DIGITS, or label.",
        metavar="FORM",
        show_default="the client's model and store, too",
        autocompletion=completion.words("full", "rounded:1", "label"),
    ),
]


@shared.makes_artifact("device", "threads", "engine")
def command(
    source: Annotated[
        Path,
        typer.Argument(
            help="Attack the clients of these predictions.",
            metavar="PREDICTIONS",
            autocompletion=completion.artifacts("predictions"),
        ),
    ],
    out: shared.Out,
    execution: Execution,
    reference: Annotated[
        list[Path] | None,
        typer.Option(
            help="Compare with these predictions of the same method, made from another split of the same samples; "
            "repeat it, twice at least. They add the attack by likelihood ratio.",
            metavar="PREDICTIONS",
            show_default=False,
            autocompletion=completion.artifacts("predictions"),
        ),
    ] = None,
    invert: Invert = 0,
    canaries: Canaries = 0,
    answers: Answers = None,
    weights: predict.Weights = None,
    seed: shared.Seed = None,
    quiet: shared.Quiet = False,
) -> Outcome:
    """Measure what an attacker learns from clients' answers: which samples they were trained on.

    Examples:
        pfl audit runs/knn-per -o runs/audit
        pfl audit runs/fedavg -o runs/audit-fedavg --invert 2
    """
    from pflcli.artifacts.reader import open_artifact
    from pflcli.commands.audit import audit

    outcome = audit(
        source,
        out,
        references=reference or (),
        invert=invert,
        canaries=canaries,
        answers=answers,
        weights=weights,
        seed=seed,
        execution=execution,
    )
    if not quiet and not execution.dry_run:
        console.attacks(open_artifact(out), to_stderr=True)
    return outcome
