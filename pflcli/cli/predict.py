"""``pfl predict``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pflcli.cli import completion, console, hardware_options, samples, shared

if TYPE_CHECKING:
    from pflcli.prediction.output import Predicted


Data = Annotated[
    Path,
    typer.Argument(
        help="Answer the samples in this .csv, .tsv, .parquet, .npy, .npz, .h5 or .hdf5 file, in this folder of images,"
        " or in CSV from stdin (-).",
        metavar="DATA",
    ),
]
Client = Annotated[
    str,
    typer.Option(
        help="Answer for the client of this name. The global model answers for a name that PREDICTIONS does not have.",
        metavar="NAME",
        autocompletion=completion.clients,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        help="Write the answers to this .csv, .jsonl or .npz file.",
        metavar="FILE",
        show_default="print them",
    ),
]
Form = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="Print the answers in this form: csv, or jsonl for a JSON object per line.",
        metavar="NAME",
        show_default="csv",
        autocompletion=completion.words("csv", "jsonl"),
    ),
]
Features = Annotated[
    str | None,
    typer.Option(help="Take the samples from this array of DATA.", metavar="NAME", show_default="x, or the only one"),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        help="Read the initial weights of the run again, where PREDICTIONS began with a file and has no backbone.",
        metavar="FILE",
        show_default=False,
    ),
]
Answers = Annotated[
    str | None,
    typer.Option(
        help="Let no more of an answer leave than this: full (its probabilities), rounded:DIGITS, or label.",
        metavar="FORM",
        show_default="the parts that explain it, too",
        autocompletion=completion.words("full", "rounded:1", "label"),
    ),
]


def command(
    source: Annotated[
        Path,
        typer.Argument(
            help="Answer as a client of these predictions does.",
            metavar="PREDICTIONS",
            autocompletion=completion.artifacts("predictions"),
        ),
    ],
    data: Data,
    client: Client,
    out: Out = None,
    form: Form = None,
    features: Features = None,
    layout: samples.Layout = None,
    delimiter: samples.Delimiter = None,
    weights: Weights = None,
    answers: Answers = None,
    method: shared.ChosenMethod = None,
    seed: shared.ChosenSeed = None,
    device: hardware_options.Device = "auto",
    threads: hardware_options.Threads = 0,
    engine: hardware_options.Engine = "auto",
    config_file: shared.Config = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace the file at --out.")] = False,
    as_json: shared.Json = False,
    quiet: shared.Quiet = False,
    verbose: shared.Verbose = False,
) -> None:
    """Answer further samples as a client's personal model does: the class, and the probability of each.

    Examples:
        pfl predict runs/knn-per digits.npz --client w0012 -o answers.csv
        pfl predict runs/knn-per digits.npz --client w0012 --answers label
    """
    from pflcli.commands.predict import predict
    from pflcli.execution import Execution
    from pflcli.prediction import output

    reporter = console.Console(quiet=quiet, verbose=verbose)
    predicted = predict(
        source,
        data,
        client=client,
        out=out,
        form=form,
        features=features,
        layout=layout,
        delimiter=delimiter,
        weights=weights,
        answers=answers,
        method=method,
        seed=seed,
        execution=Execution(force=force, device=device, engine=engine, threads=threads, reporter=reporter),
    )
    if as_json:
        console.data(_facts(predicted, out))
    elif out is not None:
        console.lines([str(out)])
    else:
        console.content(output.FORMS[output.form_of(None, form)](predicted))


def _facts(predicted: Predicted, out: Path | None) -> dict[str, Any]:
    """Return the JSON value of the answers: without each of them where they are in a file."""
    return {
        "path": None if out is None else str(out),
        "method": predicted.method,
        "client": predicted.client,
        "known": predicted.is_known,
        "tuned": dict(predicted.tuned),
        "classes": list(predicted.classes),
        "samples": len(predicted.samples),
        **({"answers": predicted.rows()} if out is None else {}),
    }
