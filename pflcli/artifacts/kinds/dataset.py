"""A user's own data, checked and converted, before it is partitioned.

``samples.h5``: ``x`` (n, ...) uint8 images or features, ``y`` (n,) int64 labels 0..C-1, ``classes`` (C,) their names;
if samples have owners, ``owner`` (n,) int64 rows of ``owners`` (m,), their names; ``features`` (d,) their names, if
they have any. Labels of another ``task`` than classes, which the summary then has, are float64, without ``classes``.
Features are float32; or float64, with attributes ``standardize`` and ``fill``, if the partition must
still standardize them or fill in missing values (NaN) by training samples; with attribute ``by_client`` for each client
separately. If the imported file has splits, ``split`` (n,) int8 is 0 for training, 1 for validation and 2 for test. If
it has groups of samples that belong together, such as one patient's, ``group`` (n,) int64 is the same for these. If
classes have superclasses, ``coarse`` (n,) int64 is that of each sample. With attribute ``ordered``, samples are sorted
by time, and with ``gap`` so many of each client are left out between splits. Columns of ``--keep``: see
``kept_columns``. Names are UTF-8. ``codebook.json``: see ``codebook``. ``profile.csv`` has a row per column of the
imported file; datasets of ``pfl embed`` have none.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import client_blocks, csv_file, h5_file, kept_columns
from pflcli.artifacts import codebook as codebooks
from pflcli.artifacts.codebook import Codebook
from pflcli.artifacts.kept_columns import Kept
from pflcli.artifacts.kinds import describe_count, describe_name, read_labels
from pflcli.artifacts.manifest import Manifest
from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core.datasets import SPLITS
from pflcli.core.errors import InputError
from pflcli.core.tasks import Labels

SCHEMA = 1
MADE_BY = "pfl import DATA -o DIR"

FILE = "samples.h5"
PROFILE = "profile.csv"
_OPTIONAL = ("split", "group", "coarse")
"""Arrays (n,) that not every dataset has."""


@dataclass(frozen=True)
class Dataset:
    """Samples, their classes and owners; ``owner`` (n,) are names. See the module for the rest.

    ``labels`` says what ``y`` is if these are not classes.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    classes: list[str]
    owner: NDArray[np.str_] | None = None
    features: tuple[str, ...] = ()
    standardize: bool = False
    fill: bool = False
    by_client: bool = False
    split: NDArray[np.int8] | None = None
    group: NDArray[np.int64] | None = None
    is_ordered: bool = False
    gap: int = 0
    coarse: NDArray[np.int64] | None = None
    kept: Kept = field(default_factory=dict)
    labels: Labels | None = None


@dataclass(frozen=True)
class ColumnProfile:
    """What a column of the imported file contains, and what ``became`` of it; None for what is not known.

    ``missing`` is the share of missing values, ``distinct`` the number of different values, and ``first`` are the first
    of these. ``remarks`` say what looks wrong.
    """

    column: str
    kind: str
    missing: float | None
    least: float | None
    most: float | None
    distinct: int | None
    first: tuple[str, ...]
    became: str
    remarks: tuple[str, ...]


_SEPARATOR = " | "


def write_profile(writer: ArtifactWriter, rows: Sequence[ColumnProfile]) -> None:
    """Write ``profile.csv``."""
    cells = ([_SEPARATOR.join(cell) if isinstance(cell, tuple) else cell for cell in astuple(row)] for row in rows)
    writer.write(PROFILE, csv_file.encode([each.name for each in fields(ColumnProfile)], cells))


def read_profile(artifact: Artifact) -> list[ColumnProfile]:
    """Read ``profile.csv``; empty if the dataset has none. Raises InputError if the file is damaged."""
    if PROFILE not in artifact.manifest.files:
        return []
    text = artifact.read(PROFILE)
    with artifact.parsing(PROFILE):
        rows = csv.DictReader(io.StringIO(text.decode(), newline=""))
        return [
            ColumnProfile(
                row["column"],
                row["kind"],
                float(row["missing"]) if row["missing"] else None,
                float(row["least"]) if row["least"] else None,
                float(row["most"]) if row["most"] else None,
                int(row["distinct"]) if row["distinct"] else None,
                tuple(filter(None, row["first"].split(_SEPARATOR))),
                row["became"],
                tuple(filter(None, row["remarks"].split(_SEPARATOR))),
            )
            for row in rows
        ]


def write(writer: ArtifactWriter, dataset: Dataset, codebook: Codebook) -> None:
    """Write ``samples.h5`` and ``codebook.json``."""
    arrays: dict[str, NDArray[Any]] = {"x": dataset.x, "y": dataset.y}
    if dataset.labels is None:
        arrays["classes"] = _encoded(dataset.classes)
    if dataset.owner is not None:
        names, arrays["owner"] = np.unique(dataset.owner, return_inverse=True)
        arrays["owners"] = np.char.encode(names, "utf-8")
    if dataset.features:
        arrays["features"] = _encoded(dataset.features)
    arrays |= {name: values for name in _OPTIONAL if (values := getattr(dataset, name)) is not None}
    arrays |= kept_columns.encode(dataset.kept)
    attributes: dict[str, Any] = {"standardize": dataset.standardize, "fill": dataset.fill}
    others = {"by_client": dataset.by_client, "ordered": dataset.is_ordered, "gap": dataset.gap}
    # The others are written only if they are not 0, so that the bytes of other datasets stay the same.
    attributes |= {name: value for name, value in others.items() if value}
    writer.write_h5(FILE, arrays, attributes if any(attributes.values()) else None)
    codebooks.write(writer, codebook)


def _encoded(names: list[str] | tuple[str, ...]) -> NDArray[Any]:
    return np.char.encode(np.asarray(names, dtype=np.str_), "utf-8")


def read(artifact: Artifact) -> Dataset:
    """Read a dataset; raises InputError if its file is damaged or inconsistent."""
    where, labels = str(artifact.path / FILE), read_labels(artifact.manifest, 0)
    with artifact.h5(FILE) as file:
        owners = np.asarray(file["owners"].asstr("utf-8")[...], dtype=np.str_) if "owners" in file else None
        owner = np.empty(0, np.int64) if owners is None else file["owner"][...]
        if owners is not None and len(owner) and not (owner.min() >= 0 and owner.max() < len(owners)):
            raise InputError(f"{where} is inconsistent: an owner is outside 0..{len(owners) - 1}")
        dataset = Dataset(
            x=h5_file.map_or_read(file["x"]),
            y=file["y"][...],
            classes=[str(name) for name in file["classes"].asstr("utf-8")[...]] if labels.fields is None else [],
            owner=None if owners is None else owners[owner],
            features=tuple(file["features"].asstr("utf-8")[...]) if "features" in file else (),
            standardize=bool(file.attrs.get("standardize", False)),
            fill=bool(file.attrs.get("fill", False)),
            by_client=bool(file.attrs.get("by_client", False)),
            is_ordered=bool(file.attrs.get("ordered", False)),
            gap=int(file.attrs.get("gap", 0)),
            kept=kept_columns.read(file, where, len(file["y"])),
            **{name: file[name][...] for name in _OPTIONAL if name in file},
            labels=None if labels.fields is None else labels,
        )
        client_blocks.check_labels(where, dataset.y, len(dataset.classes), labels)
        if not len(dataset.x) == len(dataset.y) == (len(dataset.y) if dataset.owner is None else len(dataset.owner)):
            raise InputError(f"{where} is inconsistent: x, y and owner have different lengths")
        if dataset.split is not None and (
            dataset.split.shape != dataset.y.shape or not np.isin(dataset.split, range(len(SPLITS))).all()
        ):
            raise InputError(f"{where} is inconsistent: split must be 0, 1 or 2 for each sample")
        for name, values in (("group", dataset.group), ("coarse", dataset.coarse)):
            if values is not None:
                client_blocks.check_integers(where, **{name: values})
                if values.shape != dataset.y.shape:
                    raise InputError(f"{where} is inconsistent: {name} must be a number for each sample")
        if dataset.x.ndim < 2 or dataset.x.dtype.kind not in "fiu":
            raise InputError(f"{where} is inconsistent: x is not an array of samples")
        if dataset.x.dtype.kind == "f":
            for piece in client_blocks.pieces(dataset.x):
                if not (~np.isinf(piece) if dataset.fill else np.isfinite(piece)).all():
                    raise InputError(f"{where} is inconsistent: x has a number that is not finite")
    return dataset


check = read


def describe(manifest: Manifest) -> list[str]:
    """Return a few facts that distinguish artifacts of this kind, as text."""
    summary, classes, labels = manifest.summary, manifest.summary.get("classes"), read_labels(manifest, 0)
    return [
        describe_name(manifest.made.get("source")),
        describe_count(summary.get("clients"), "client"),
        describe_count(summary.get("samples"), "sample"),
        f"{len(classes)} classes" if isinstance(classes, dict) else "" if labels.fields is None else labels.kind,
    ]
