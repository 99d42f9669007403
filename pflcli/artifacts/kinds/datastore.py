"""The datastore: one FAISS index per client, all in one file, and the labels of their rows.

``stores.faiss``: the concatenated serialized indexes; that of client c is bytes ``bytes[c]:bytes[c + 1]``.
``labels.h5``: ``y``, ``sample`` (n,) int64 in the order of index rows (-1 for a prototype of several samples),
``offsets`` (m + 1,) of the rows by client, ``bytes`` (m + 1,). ``clients.csv``: one row per client. Updated stores have
``validation.h5``: the validation samples that have arrived, as a split of embeddings.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import client_blocks, codebook
from pflcli.artifacts.kinds import describe_count, describe_name, read_labels
from pflcli.artifacts.kinds.embeddings import FIELDS, StoredEmbeddings, read_split
from pflcli.artifacts.manifest import Manifest
from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import rng
from pflcli.core.errors import InputError
from pflcli.core.knn import capacity as capacities
from pflcli.core.knn import indexes
from pflcli.core.knn.prototypes import build_prototypes

SCHEMA = 1
MADE_BY = "pfl build-datastore EMBEDDINGS -o DIR"

INDEXES = "stores.faiss"
_FIELDS = ("y", "sample", "offsets", "bytes")

NO_SAMPLE = -1
"""The sample id of a prototype that represents several samples."""


@dataclass(frozen=True)
class StoredSamples:
    """The samples of one store: ``z`` (n, d), ``y``, ``sample`` (n,)."""

    z: NDArray[np.float32]
    y: NDArray[np.int64]
    sample: NDArray[np.int64]


@dataclass(frozen=True)
class Packed:
    """The serialized stores of all clients, with labels and offsets; see the module for shapes."""

    blob: NDArray[np.uint8]
    y: NDArray[np.int64]
    sample: NDArray[np.int64]
    offsets: NDArray[np.int64]
    bytes: NDArray[np.int64]


def write_labels(writer: ArtifactWriter, **arrays: NDArray[np.int64]) -> None:
    """Write ``labels.h5``, with the arrays of ``Packed`` except the serialized indexes."""
    writer.write_h5("labels.h5", {name: arrays[name] for name in _FIELDS})


def write_arrived(writer: ArtifactWriter, split: StoredEmbeddings) -> None:
    """Write the validation samples that have arrived, sorted by client, the oldest first."""
    writer.write_h5("validation.h5", {name: getattr(split, name) for name in FIELDS})


def read_arrived(artifact: Artifact) -> StoredEmbeddings | None:
    """Read the validation samples that have arrived; None for stores that were never updated, where all have."""
    if "validation.h5" not in artifact.manifest.files:
        return None
    with artifact.h5("validation.h5") as file:
        return read_split(file, f"{artifact.path}/validation.h5", read_labels(artifact.manifest, 0))


def read(artifact: Artifact) -> Packed:
    """Read both files; raises InputError if either is damaged or they do not match."""
    with artifact.h5("labels.h5") as file:
        arrays = {name: file[name][...] for name in _FIELDS}
    packed = Packed(blob=artifact.map_file(INDEXES), **arrays)
    client_blocks.check(f"{artifact.path}/labels.h5", packed.offsets, len(packed.y), len(packed.sample))
    client_blocks.check(f"{artifact.path}/{INDEXES}", packed.bytes, len(packed.blob))
    client_blocks.check_integers(f"{artifact.path}/labels.h5", sample=packed.sample)
    if len(packed.offsets) != len(packed.bytes):
        raise InputError(f"{artifact.path} is inconsistent: its files disagree on the number of clients")
    return packed


def read_stores(artifact: Artifact, classes: int, dimension: int | None = None, *, exact: bool = False) -> Packed:
    """Read the stores of an artifact, and check their indexes, the number of classes and the ``dimension`` of vectors.

    With ``exact``, only exact indexes are allowed.
    Raises InputError if a file is damaged, or does not match these or the other file.
    """
    packed = read(artifact)
    client_blocks.check_labels(f"{artifact.path}/labels.h5", packed.y, classes, read_labels(artifact.manifest, classes))
    with artifact.parsing(INDEXES):
        for client, rows in enumerate(np.diff(packed.offsets)):
            raw = packed.blob[packed.bytes[client] : packed.bytes[client + 1]]
            index = indexes.read(raw)
            count, width = int(index.ntotal), int(index.d)
            vectors = indexes.flat_vectors(raw, index)
            if vectors is None and exact:
                raise ValueError(f"the index of client {client} is not {indexes.EXACT}")
            if vectors is not None and not np.isfinite(vectors).all():
                raise ValueError(f"client {client} has a vector that is not finite")
            dimension = width if dimension is None else dimension
            if (count, width) != (rows, dimension):
                raise ValueError(f"client {client} has {count} vectors of {width} numbers, not {rows} of {dimension}")
    return packed


def check(artifact: Artifact) -> None:
    """Read every file; raises InputError if one is damaged or has an invalid value."""
    read_stores(artifact, len(codebook.read(artifact).classes) or sys.maxsize)
    read_arrived(artifact)


def describe(manifest: Manifest) -> list[str]:
    """Return a few facts that distinguish artifacts of this kind, as text."""
    request, summary = manifest.request, manifest.summary
    stored = summary.get("bytes")
    return [
        describe_name(request.get("index"), "index"),
        describe_name(request.get("policy"), "policy"),
        describe_count(summary.get("clients"), "store"),
        describe_count(summary.get("samples"), "sample"),
        f"{stored / 1e6:.1f} MB" if isinstance(stored, int) else "",
    ]


def build_store(
    request: Mapping[str, Any], train: StoredEmbeddings, client: int
) -> tuple[NDArray[np.uint8], StoredSamples]:
    """Return the serialized store of ``client``, the last client of ``train``, and the samples in it.

    ``request`` is the request of the datastore.
    """
    seed, index = int(request["seed"]), request.get("index", indexes.EXACT)
    capacity = capacities.draw_capacities(
        request.get("capacity", 1.0), request.get("capacity_spread", 0.0), client + 1, seed
    )
    store = store_samples(train, client, float(capacity[client]), request.get("prototypes"), seed)
    blob, _ = indexes.build(index, store.z, request.get("parameters", {}))
    return blob, store


def store_samples(
    split: StoredEmbeddings, client: int, capacity: float, prototypes: float | None, seed: int
) -> StoredSamples:
    """Return the training samples in the store of ``client``, or the prototypes that represent them."""
    first, last = split.offsets[client], split.offsets[client + 1]
    rows = np.arange(first, last)
    if capacity < 1:
        rows = first + capacities.kept_rows(capacity, capacities.arrival_order(seed, "train", client, last - first))
    z, y, sample = split.z[rows], split.y[rows], split.sample[rows]
    if prototypes is not None:
        share = min(1.0, prototypes / max(len(y), 1)) if prototypes >= 1 else prototypes
        draw = rng.generator(seed, "prototypes", "train", client)
        z, y, row = build_prototypes(z, y, capacities.count_kept_rows(share, len(y)), draw)
        sample = np.where(row >= 0, sample[row], NO_SAMPLE)
    return StoredSamples(z, y, sample)
