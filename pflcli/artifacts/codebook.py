"""The meaning of an artifact's numbers: ``codebook.json``, in every artifact from the dataset to the predictions.

It has the names of clients, classes and features, the user's columns that features were made from, and the mean and
standard deviation of standardized features. Every command copies it, so that an artifact has its names even if its
inputs are gone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from pflcli.artifacts import csv_file
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.reader import Artifact
from pflcli.artifacts.writer import ArtifactWriter
from pflcli.core import wording
from pflcli.core.errors import InputError

FILE = "codebook.json"
_REQUIRED = ("dataset", "clients", "columns", "mean", "sd", "complete")
_FORMAT = {"extra": "forbid", "allow_inf_nan": False}

INPUTS = ("classes", "features", "mean", "sd", "median")
"""Fields that must be the same for samples and their model."""
_SCALES = ("mean", "sd", "median")
_TITLES = {"mean": "standardization", "sd": "standardization", "median": "medians for missing values"}
_MAX_LISTED = 8
"""Names in a message."""


@dataclass(frozen=True)
class Column:
    """One column of the user's table: a number or, with ``words``, one 0/1 feature per word, in this order.

    With ``size``, each cell is a list of so many numbers. With ``gaps``, one more 0/1 feature marks missing values.
    """

    __pydantic_config__ = _FORMAT
    name: str
    words: tuple[str, ...] = ()
    gaps: bool = False
    size: Annotated[int, Ge(0)] = 0

    @property
    def features(self) -> list[str]:
        """The names of its features, without the one that marks missing values."""
        words = [f"{self.name}={word}" for word in self.words]
        return words or [f"{self.name}[{at}]" for at in range(self.size)] or [self.name]

    @property
    def all_features(self) -> list[str]:
        """The names of its features, with the one that marks missing values, if there is one."""
        return [*self.features, *[f"{self.name} missing"] * self.gaps]


@dataclass(frozen=True)
class ClientScale:
    """The mean and standard deviation (d,) of the features of the ``client`` with this name."""

    __pydantic_config__ = _FORMAT
    client: str
    mean: tuple[float, ...]
    sd: tuple[float, ...]


@dataclass(frozen=True)
class Encoder:
    """The frozen network that computed the features from images of ``shape`` (H, W) or (H, W, channels).

    ``name`` is its kind and name, such as torchvision:mobilenet_v2. ``weights`` is a hash of its weights, empty if the
    features were computed elsewhere. Images are resized to ``size`` pixels, and each channel is normalized by ``mean``
    and ``deviation``. ``output`` is the tensor of an ONNX file that contains the features.
    """

    __pydantic_config__ = _FORMAT
    name: str
    weights: str = ""
    size: Annotated[int, Ge(0)] = 0
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    output: str = ""
    shape: tuple[Annotated[int, Ge(0)], ...] = ()

    def __str__(self) -> str:
        """Return its name, size and a part of the hash, as messages show it."""
        if not self.weights:
            return self.name
        return f"{self.name} at {self.size} pixels with weights {self.weights[:12]}"


@dataclass(frozen=True)
class Dialect:
    """How the user's tables are written: the options of ``pfl import`` with these names, None if not given.

    An empty value is given: there is no such mark in this table, although there was in an earlier one.
    """

    __pydantic_config__ = _FORMAT
    delimiter: str | None = None
    decimal: str | None = None
    thousands: str | None = None
    strip: tuple[str, ...] | None = None
    na: tuple[str, ...] | None = None
    header: bool | None = None
    names: tuple[str, ...] | None = None
    skip_rows: Annotated[int, Ge(0)] | None = None
    comment: str | None = None
    sheet: str | None = None
    date_format: str | None = None
    fold_case: bool | None = None
    label_map: tuple[tuple[str, str], ...] | None = None
    skip_footer: Annotated[int, Ge(0)] | None = None

    def given(self) -> dict[str, Any]:
        """Return the options that were given, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


NO_DIALECT = Dialect()
"""The dialect of tables that need no option."""


@dataclass(frozen=True)
class Codebook:
    """The names of ``clients`` (m,), ``classes`` (C,) and ``features`` (d,); empty if there are none.

    ``dataset`` is the title of pictures. The features were made from ``columns``. ``mean``, ``sd`` and ``median`` (d,)
    are those of the features, or of the channels of a series; they are empty if features were not standardized, or
    missing values not filled in. A ``sd`` of 0 marks a constant. If each client was standardized by its own samples,
    ``scales`` has the numbers, and ``mean`` and ``sd`` are empty. ``complete`` is always true. ``encoder`` is the
    network that computed the features, None if there is none. ``dialect`` is how the user's tables are written, None if
    no option was needed to read them. ``unit`` is that of labels that are numbers; empty if it is not known.
    """

    __pydantic_config__ = _FORMAT
    dataset: str = ""
    clients: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    mean: tuple[float, ...] = ()
    sd: tuple[float, ...] = ()
    median: tuple[float, ...] = ()
    complete: Literal[True] = True
    scales: tuple[ClientScale, ...] = ()
    encoder: Encoder | None = None
    dialect: Dialect | None = None
    unit: str = ""

    def client_names(self, count: int) -> list[str]:
        """Return the names of ``count`` clients, or their numbers if the names are unknown."""
        return list(self.clients) if len(self.clients) == count else [str(client) for client in range(count)]

    def class_names(self, count: int) -> list[str]:
        """Return the names of ``count`` classes, or their numbers if the names are unknown."""
        return list(self.classes) if len(self.classes) == count else [str(label) for label in range(count)]


def write(writer: ArtifactWriter, codebook: Codebook) -> None:
    """Write ``codebook.json``."""
    writer.write(FILE, (json.dumps(to_fields(codebook), indent=1, ensure_ascii=False) + "\n").encode())


def to_fields(codebook: Codebook) -> dict[str, Any]:
    """Return the fields of ``codebook.json``; some are left out if they are empty."""
    fields = asdict(codebook)
    for column in fields["columns"]:
        if not column["size"]:
            del column["size"]
    if codebook.dialect is not None:
        fields["dialect"] = codebook.dialect.given()
    return {key: value for key, value in fields.items() if value or key not in ("scales", "encoder", "dialect", "unit")}


def read(artifact: Artifact) -> Codebook:
    """Return the codebook of an artifact or, if that is planned, of what it will be made from.

    Raises InputError if the file is missing or damaged.
    """
    if artifact.origin is not None:
        return read(artifact.origin)
    values = artifact.json(FILE)
    with artifact.parsing(FILE):
        missing = [name for name in _REQUIRED if name not in values]
        if missing:
            raise ValueError(f"it has no {missing[0]}")
        codebook: Codebook = manifests.validate(Codebook, values)
        if len(codebook.mean) != len(codebook.sd):
            raise ValueError(f"it has {len(codebook.mean)} means but {len(codebook.sd)} deviations")
        clients, names = artifact.manifest.summary.get("clients"), len(codebook.clients)
        if clients is not None and names not in (0, clients):
            raise ValueError(f"it has {names} names for {clients} clients")
        encoder = codebook.encoder
        if encoder is not None and (len(encoder.mean) != len(encoder.deviation) or not all(encoder.deviation)):
            raise ValueError("encoder has no valid normalization")
        return codebook


def require_same(first: Artifact, second: Artifact, *fields: str, fix: str = "") -> None:
    """Raise InputError if the codebooks of two artifacts differ in one of these fields of ``Codebook``.

    Names that only one of them has are ignored.
    """
    book, other_book = read(first), read(second)
    if "mean" in fields:
        _require_same_scales(first, second, book, other_book, fix)
    if book.encoder != other_book.encoder and {*INPUTS} <= {*fields}:
        names = [str(each or "no encoder") for each in (book.encoder, other_book.encoder)]
        raise InputError(f"{first.path} and {second.path} differ in their encoder: {' against '.join(names)}", fix)
    for field in fields:
        values, others = getattr(book, field), getattr(other_book, field)
        if values != others and (field in _SCALES or (values and others)):
            raise InputError(
                f"{first.path} and {second.path} differ in their {_TITLES.get(field, field)}: "
                f"{_describe_difference(field, values, others, book.features or other_book.features)}",
                fix,
            )


def _require_same_scales(first: Artifact, second: Artifact, book: Codebook, other: Codebook, fix: str) -> None:
    """Raise InputError if only one artifact is standardized by client, or if the scales of a common client differ."""
    if bool(book.scales) != bool(other.scales):
        by_client, together = (first, second) if book.scales else (second, first)
        raise InputError(f"{by_client.path} is standardized by client, and {together.path} is not", fix)
    other_scales = {scale.client: scale for scale in other.scales}
    for scale in book.scales:
        if scale != other_scales.get(scale.client, scale):
            raise InputError(
                f"{first.path} and {second.path} differ in the standardization of client '{scale.client}'", fix
            )


def _describe_difference(field: str, first: Sequence[Any], second: Sequence[Any], features: Sequence[str]) -> str:
    if field not in _SCALES:
        names, other_names = set(first), set(second)
        if max(len(first), len(second)) > _MAX_LISTED and names != other_names:
            # Show only the names of long lists that differ.
            only_first = _join_names([name for name in first if name not in other_names])
            only_second = _join_names([name for name in second if name not in names])
            return f"only the first has {only_first or 'nothing'}, only the second {only_second or 'nothing'}"
        return f"{_join_names(first)} against {_join_names(second)}"
    if not (first and second):
        return "only the second has it" if not first else "only the first has it"
    if len(first) != len(second):
        return f"{len(first)} features against {len(second)}"
    feature = int(np.flatnonzero(np.asarray(first) != np.asarray(second))[0])
    name = features[feature] if len(features) == len(first) else f"feature {feature}"
    return f"the {field} of '{name}' is {first[feature]:.6g} against {second[feature]:.6g}"


def _join_names(names: Sequence[str]) -> str:
    return wording.listed([str(name) for name in names], most=_MAX_LISTED)


def clients_csv(codebook: Codebook, heading: Sequence[str], rows: Sequence[Sequence[Any]]) -> bytes:
    """Return ``clients.csv``: a row per client that begins with its number and name."""
    names = codebook.client_names(len(rows))
    numbered = ([client, name, *row] for client, (name, row) in enumerate(zip(names, rows, strict=True)))
    return csv_file.encode(["client", "name", *heading], numbered)


def floats(values: NDArray[Any] | None) -> tuple[float, ...]:
    """Return an array (d,) as a tuple for a codebook; empty for None."""
    return () if values is None else tuple(float(value) for value in values)
