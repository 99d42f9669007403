"""The options of ``pfl build-datastore``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

import typer

from pflcli.options import completion
from pflcli.options.declaration import (
    ASSIGNMENTS,
    ArtifactPath,
    ChosenMethod,
    Options,
    Out,
    Seed,
    artifact_argument,
    merge_with_file,
)


@dataclass(frozen=True)
class BuildDatastore(Options):
    """Build one nearest-neighbour index per client.

    Examples:
        pfl build-datastore runs/e -o runs/d
        pfl build-datastore runs/e -o runs/half --capacity 0.5 --index SQ8
    """

    NAME: ClassVar[str] = "build-datastore"

    source: Annotated[ArtifactPath, artifact_argument("Index these embeddings.", "embeddings")]
    out: Out
    _: KW_ONLY
    index: Annotated[
        str,
        typer.Option(
            help="Build this FAISS index. Flat is exact; SQ8, PQ16x4 and PCA64,Flat take less memory; HNSW32 and"
            " IVF8,Flat take less time.",
            metavar="FACTORY",
            autocompletion=completion.words("Flat", "SQ8", "PQ16x4", "PCA64,Flat", "HNSW32", "IVF8,Flat"),
        ),
    ] = "Flat"
    parameters: Annotated[
        Mapping[str, str] | None,
        ASSIGNMENTS,
        typer.Option(
            "--set",
            help="Set a search option of the index, such as nprobe=4; repeat it for more.",
            metavar="KEY=VALUE",
            callback=merge_with_file,
        ),
    ] = None
    capacity: Annotated[
        float,
        typer.Option(
            help="Keep this fraction (0 to 1) of each client's training samples in its store.",
            min=0.0,
            max=1.0,
            metavar="F",
        ),
    ] = 1.0
    capacity_spread: Annotated[
        float,
        typer.Option(
            help="Vary the capacity: half of the clients keep --capacity minus this fraction, half --capacity plus it.",
            metavar="F",
        ),
    ] = 0.0
    prototypes: Annotated[
        float | None,
        typer.Option(
            help="Keep this many k-means prototypes instead of the training samples; below 1, this fraction of them.",
            metavar="N",
            show_default="the samples themselves",
        ),
    ] = None
    method: ChosenMethod = None
    seed: Seed = None
