"""Embeddings: ``embeddings.h5``, one group per split, flat arrays sorted by client.

Group ``train``, ``validation``, ``test``: ``z`` (n, d) float32, the input of the model's head; ``logits`` (n, C)
float32; ``y`` (n,), ``sample`` (n,) int64; ``offsets`` (m + 1,) int64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import client_blocks, h5_file
from pflcli.artifacts.kinds import describe_count, read_labels
from pflcli.artifacts.manifest import Manifest, require_summary
from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core.datasets import SPLITS
from pflcli.core.errors import ComputationError, InputError
from pflcli.core.knn.embedded import Embedded
from pflcli.core.tasks import Labels

SCHEMA = 1
MADE_BY = "pfl extract BACKBONE -o DIR"


@dataclass(frozen=True)
class StoredEmbeddings(Embedded):
    """The representations of one split of all clients, with each sample's row in the dataset, ``sample`` (n,)."""

    sample: NDArray[np.int64]


FILE = "embeddings.h5"
FIELDS = ("z", "logits", "y", "sample", "offsets")


@dataclass(frozen=True)
class SplitPieces:
    """Labels ``y`` and ids ``sample`` (n,) of one split, ``offsets`` (m + 1,), and its representations in pieces.

    ``pieces()`` yields z (k, d) and logits (k, C) of consecutive groups of samples.
    """

    y: NDArray[np.int64]
    sample: NDArray[np.int64]
    offsets: NDArray[np.int64]
    pieces: Callable[[], Iterable[tuple[NDArray[np.float32], NDArray[np.float32]]]]


def write(writer: ArtifactWriter, splits: Mapping[str, SplitPieces], dimension: int, classes: int) -> None:
    """Write ``embeddings.h5`` in pieces; raises ComputationError if a number is not finite."""
    with writer.h5(FILE) as file:
        for split, source in splits.items():
            count = len(source.y)
            z = h5_file.reserve(file, f"{split}/z", (count, dimension), np.float32)
            logits = h5_file.reserve(file, f"{split}/logits", (count, classes), np.float32)
            h5_file.fill(file, {f"{split}/{name}": getattr(source, name) for name in ("y", "sample", "offsets")})
            first = 0
            for piece in source.pieces():
                if not all(np.isfinite(values).all() for values in piece):
                    raise ComputationError(
                        f"embeddings of split {split} are not finite: the features are too large for 32 bits",
                        "pfl import DATA --standardize",
                    )
                last = first + len(piece[0])
                z[first:last], logits[first:last] = piece
                first = last


def read(artifact: Artifact) -> dict[str, StoredEmbeddings]:
    """Read all splits; raises InputError if the file is damaged or inconsistent."""
    with artifact.h5(FILE) as file:
        labels = read_labels(artifact.manifest, 0)
        splits = {split: read_split(file[split], f"{artifact.path}/{FILE}, split {split},", labels) for split in SPLITS}
    if len({(len(each.offsets), each.z.shape[1], each.logits.shape[1]) for each in splits.values()}) > 1:
        raise InputError(f"{artifact.path}/{FILE} is inconsistent: its splits differ in clients, dimensions or classes")
    first = next(iter(splits.values()))
    found = {"samples": sum(len(each.y) for each in splits.values()), "dimension": first.z.shape[1]}
    require_summary(f"{artifact.path}/{FILE}", artifact.manifest.summary, **found, clients=len(first.offsets) - 1)
    return splits


def read_dimension(artifact: Artifact) -> int:
    """Read the dimension of embeddings, without reading them."""
    with artifact.h5(FILE) as file:
        return int(file["train/z"].shape[1])


def read_split(group: Any, where: str, labels: Labels) -> StoredEmbeddings:
    """Read one split from its HDF5 group; raises InputError, which begins with ``where``, for invalid values."""
    embedded = StoredEmbeddings(
        **{name: h5_file.map_or_read(group[name]) if name in ("z", "logits") else group[name][...] for name in FIELDS}
    )
    client_blocks.check(
        where, embedded.offsets, len(embedded.z), len(embedded.logits), len(embedded.y), len(embedded.sample)
    )
    if embedded.z.ndim != 2 or embedded.logits.ndim != 2:
        raise InputError(f"{where} is inconsistent: z and logits must be matrices")
    client_blocks.check_labels(where, embedded.y, embedded.logits.shape[1], labels)
    client_blocks.check_integers(where, sample=embedded.sample)
    client_blocks.check_finite(where, z=embedded.z, logits=embedded.logits)
    return embedded


check = read


def describe(manifest: Manifest) -> list[str]:
    """Return a few facts that distinguish artifacts of this kind, as text."""
    return [
        describe_count(manifest.summary.get("samples"), "sample"),
        describe_count(manifest.summary.get("dimension"), "dimension"),
    ]
