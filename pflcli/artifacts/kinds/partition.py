"""The partition: a copy of the samples, sorted by client and split, so that it does not depend on their origin.

``samples.h5``: ``x`` (n, ...) uint8, float32 or int16, ``y`` (n,) int64, ``sample`` (n,) int64 row in the source
dataset, ``offsets`` (3 m + 1,) int64 over the blocks (client, split) in the order train, validation, test; ``names``
(m,) of the clients, UTF-8; attribute ``classes`` (count); labels of another task, which the summary then has, are
float64, and the attribute is the number of outputs. Optional: ``cluster`` (m,) int64, the true cluster of each
client; ``new`` (m,) bool, the clients excluded from training the global model; ``poisoned`` (m,) bool and, if
these manipulate their updates, ``update_factor`` and ``update_noise`` (m,) float64: see ``federation.attack``. Columns
by which scores are grouped, which no method sees: see ``kept_columns``.
``clients.csv``: one row per client. ``codebook.json``: see ``codebook``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import client_blocks, h5_file, kept_columns
from pflcli.artifacts import codebook as codebooks
from pflcli.artifacts.client_blocks import LazyRows
from pflcli.artifacts.codebook import Codebook
from pflcli.artifacts.kept_columns import Kept
from pflcli.artifacts.kinds import describe_count, describe_name, read_labels
from pflcli.artifacts.manifest import Manifest, require_summary
from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core.datasets import SPLITS
from pflcli.core.errors import InputError
from pflcli.core.tasks import CLASSES, Labels

SCHEMA = 1
MADE_BY = "pfl partition DATASET -o DIR"

FILE = "samples.h5"
_TYPES = (np.uint8, np.int16, np.float32, np.float64)
"""Types of samples: images, tokens, features."""
_MARKS, _ATTACK = ("cluster", "new", "poisoned"), ("update_factor", "update_noise")
"""Optional arrays (m,): marks of clients, and the attack of poisoned clients on their updates."""


@dataclass(frozen=True)
class Partition:
    """The samples of each client and split; see the module for shapes."""

    x: NDArray[Any] | LazyRows
    y: NDArray[np.int64]
    sample: NDArray[np.int64]
    offsets: NDArray[np.int64]
    names: list[str]
    labels: Labels
    cluster: NDArray[np.int64] | None = None
    new: NDArray[np.bool_] | None = None
    poisoned: NDArray[np.bool_] | None = None
    update_factor: NDArray[np.float64] | None = None
    update_noise: NDArray[np.float64] | None = None
    kept: Kept = field(default_factory=dict)

    @property
    def classes(self) -> int:
        """The number of classes, or of outputs of another task."""
        return self.labels.outputs

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """The number of samples by client and class, (m, classes)."""
        client = np.repeat(np.arange(len(self.names)), self.sizes.sum(axis=1))
        counts = np.bincount(client * self.classes + self.y, minlength=len(self.names) * self.classes)
        return counts.astype(np.int64).reshape(-1, self.classes)

    def describe_labels(self) -> dict[str, Sequence[Any]]:
        """Return facts about the labels of each client (m,), by heading: how many occur, or those of another task."""
        if self.labels.kind == CLASSES:
            return {"labels": (self.label_counts > 0).sum(axis=1)}
        task = self.labels.task()
        facts = [task.describe(piece) for piece in self.list_labels()]
        return {heading: [fact[heading] for fact in facts] for heading in facts[0]}

    def list_labels(self) -> list[NDArray[Any]]:
        """Return the labels of each client (m,)."""
        return np.split(self.y, self.offsets[len(SPLITS) :: len(SPLITS)][:-1])

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Samples by client and split, (m, 3)."""
        sizes: NDArray[np.int64] = np.diff(self.offsets).reshape(-1, len(SPLITS))
        return sizes

    def list_training_labels(self) -> list[NDArray[Any]]:
        """Return the labels (n,) of the training samples of each client that trains a global model."""
        blocks = self.offsets[:-1].reshape(-1, len(SPLITS))[:, :2]
        return [self.y[first:last] for first, last in (blocks if self.new is None else blocks[~self.new])]

    @property
    def _optional(self) -> dict[str, NDArray[Any]]:
        """The optional arrays that exist, (m,) each."""
        arrays = {name: getattr(self, name) for name in (*_MARKS, *_ATTACK)}
        return {name: values for name, values in arrays.items() if values is not None}

    def check(self, where: str) -> None:
        """Raise InputError if splits overlap, labels are out of range or offsets do not match."""
        client_blocks.check(where, self.offsets, len(self.x), len(self.y), len(self.sample))
        if len(self.offsets) != len(SPLITS) * len(self.names) + 1:
            raise InputError(f"{where} is inconsistent: {len(self.names)} clients, {len(self.offsets)} offsets")
        for name, values in self._optional.items():
            if values.shape != (len(self.names),):
                raise InputError(f"{where} is inconsistent: {len(self.names)} clients, {name} of shape {values.shape}")
        if len(np.unique(self.sample)) != len(self.sample):
            raise InputError(f"{where} is inconsistent: a sample occurs twice, so splits are not disjoint")
        client_blocks.check_labels(where, self.y, self.labels.outputs, self.labels)
        client_blocks.check_integers(where, sample=self.sample)
        if self.cluster is not None:
            client_blocks.check_integers(where, cluster=self.cluster)
        if self.x.ndim < 2 or self.x.dtype not in _TYPES:
            raise InputError(f"{where} is inconsistent: x is not an array of samples")
        if self.x.dtype.kind == "f":
            client_blocks.check_finite(where, x=self.x)
        for name in ("new", "poisoned"):
            if name in self._optional and self._optional[name].dtype.kind != "b":
                raise InputError(f"{where} is inconsistent: {name} must be boolean")
        attack = {name: values for name, values in self._optional.items() if name in _ATTACK}
        if len(attack) == 1 or any(values.dtype != np.float64 for values in attack.values()):
            raise InputError(f"{where} is inconsistent: {' and '.join(_ATTACK)} must be float64")
        client_blocks.check_finite(where, **attack)


def write(writer: ArtifactWriter, partition: Partition, codebook: Codebook) -> None:
    """Write the files of a partition, after checking that its splits are disjoint."""
    partition.check(str(writer.out))
    arrays: dict[str, NDArray[Any] | LazyRows] = {
        "x": partition.x,
        "y": partition.y,
        "sample": partition.sample,
        "offsets": partition.offsets,
    }
    # An array, not an attribute: HDF5 limits attributes to 64 KiB, about 4,000 names.
    arrays["names"] = np.char.encode(np.asarray(partition.names, dtype=np.str_), "utf-8")
    arrays |= partition._optional | kept_columns.encode(partition.kept)
    writer.write_h5(FILE, arrays, {"classes": partition.classes})
    writer.write("clients.csv", _table(partition, codebook))
    codebooks.write(writer, codebook)


def _table(partition: Partition, codebook: Codebook) -> bytes:
    optional = {name: values for name, values in partition._optional.items() if name in _MARKS}
    facts = partition.describe_labels()
    rows = [
        [
            *partition.sizes[client],
            *(values[client] for values in facts.values()),
            *(int(values[client]) for values in optional.values()),
        ]
        for client in range(len(partition.names))
    ]
    return codebooks.clients_csv(codebook, [*SPLITS, *facts, *optional], rows)


def read(artifact: Artifact) -> Partition:
    """Read a partition; raises InputError if its file is damaged or inconsistent."""
    where = str(artifact.path / FILE)
    with artifact.h5(FILE) as file:
        partition = Partition(
            x=h5_file.map_or_read(file["x"]),
            y=file["y"][...],
            sample=file["sample"][...],
            offsets=file["offsets"][...],
            names=[str(name) for name in file["names"].asstr("utf-8")[...]],
            labels=Labels(int(file.attrs["classes"]), **artifact.manifest.summary.get("task", {})),
            kept=kept_columns.read(file, where, len(file["y"])),
            **{name: file[name][...] for name in (*_MARKS, *_ATTACK) if name in file},
        )
        partition.check(where)
        totals = dict(zip(SPLITS, partition.sizes.sum(axis=0).tolist(), strict=True))
        found = {
            **({"classes": partition.labels.outputs} if partition.labels.fields is None else {}),
            "clients": len(partition.names),
            "samples": len(partition.y),
            **totals,
        }
        require_summary(where, artifact.manifest.summary, **found)
    return partition


@dataclass(frozen=True)
class Form:
    """The ``shape`` of one sample (images have channels last), its ``dtype``, and what ``labels`` are."""

    shape: tuple[int, ...]
    dtype: str
    labels: Labels

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of a sample as a model's input: images have channels first."""
        if self.dtype != "uint8":
            return self.shape
        return (1, *self.shape) if len(self.shape) == 2 else (self.shape[2], *self.shape[:2])


def read_form(artifact: Artifact) -> Form:
    """Return the form of a partition's samples, without reading them."""
    summary = artifact.manifest.summary
    return Form(tuple(summary["shape"]), summary["type"], read_labels(artifact.manifest, summary.get("classes", 0)))


def read_sizes(artifact: Artifact) -> NDArray[np.int64]:
    """Read the numbers of samples by client and split, (m, 3), without the samples."""
    with artifact.h5(FILE) as file:
        sizes: NDArray[np.int64] = np.diff(file["offsets"][...]).reshape(-1, len(SPLITS))
        return sizes


def read_able_clients(artifact: Artifact) -> NDArray[np.int64]:
    """Read the ids of the clients that can take part in a round: those with training samples that are not new."""
    with artifact.h5(FILE) as file:
        train = np.diff(file["offsets"][...])[:: len(SPLITS)] > 0
        return np.flatnonzero(train & ~file["new"][...] if "new" in file else train)


def read_new_clients(artifact: Artifact) -> NDArray[np.bool_] | None:
    """Read the mask (m,) of clients excluded from training the global model, or None if it is not recorded."""
    with artifact.h5(FILE) as file:
        return file["new"][...] if "new" in file else None


def read_clusters(artifact: Artifact) -> NDArray[np.int64] | None:
    """Read the true cluster of each client, (m,), or None if the partition has none."""
    with artifact.h5(FILE) as file:
        return file["cluster"][...] if "cluster" in file else None


check = read


def describe(manifest: Manifest) -> list[str]:
    """Return a few facts that distinguish artifacts of this kind, as text."""
    request, summary = manifest.request, manifest.summary
    return [
        describe_name(request.get("dataset")),
        describe_name(request.get("scheme"), "scheme"),
        describe_count(summary.get("clients"), "client"),
        describe_count(summary.get("samples"), "sample"),
    ]
