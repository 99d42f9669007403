"""Options that say on what a run is computed."""

from __future__ import annotations

from typing import Annotated

import typer

from pflcli.cli import completion

Device = Annotated[
    str,
    typer.Option(
        help="Compute on this device: cpu, cuda, cuda:1, or auto (a GPU if there is one).",
        metavar="NAME",
        autocompletion=completion.words("auto", "cpu", "cuda"),
    ),
]
Threads = Annotated[int, typer.Option(help="Use this many threads; 0 uses one per core.", metavar="N")]
Engine = Annotated[
    str,
    typer.Option(
        help="Train clients one by one (loop), many as one batched program (stacked), or by a rule (auto).",
        metavar="NAME",
        autocompletion=completion.words("auto", "loop", "stacked"),
    ),
]
Jobs = Annotated[
    int, typer.Option(help="Train clients in this many worker processes; 0 trains them in threads.", metavar="N")
]
Executor = Annotated[
    str,
    typer.Option(
        help="Train clients on this machine (local), or on workers of Ray (ray), of which --jobs is the number; 0 takes"
        " as many as there is room for (pip install 'pflcli\\[ray]').",
        metavar="NAME",
        autocompletion=completion.words("local", "ray"),
    ),
]
RayAddress = Annotated[
    str,
    typer.Option(
        help="Join this Ray cluster, such as 10.0.0.1:6379, or auto.", metavar="HOST:PORT", show_default="this machine"
    ),
]
GpusPerWorker = Annotated[
    float, typer.Option(help="Let each worker of Ray take this many GPUs, or a part of one.", metavar="N")
]
