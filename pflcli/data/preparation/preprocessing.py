"""Missing values and scales of features, computed from a partition's training samples and applied to later samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts.codebook import NO_DIALECT, ClientScale, Codebook, Column, Dialect, floats
from pflcli.artifacts.kinds.partition import Form, Partition
from pflcli.core.datasets import Scaling
from pflcli.core.errors import InputError
from pflcli.core.tasks import Labels
from pflcli.data.formats import Like, RawSamples
from pflcli.data.formats.images import Decoding
from pflcli.data.preparation import cleaning

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scale:
    """The ``mean`` and standard deviation ``sd`` (d,) of features; a deviation of 0 marks a constant feature."""

    mean: Floats
    sd: Floats

    @classmethod
    def fit(cls, known: Floats, numeric: NDArray[np.bool_]) -> Scale:
        """Return the scale of values (n, d), n > 0; features not ``numeric`` (d,) get mean 0 and deviation 1."""
        mean, sd = known.mean(axis=0), known.std(axis=0)
        # Rounding can leave a constant feature with a deviation that is not 0.
        constant = (known.max(axis=0) == known.min(axis=0)) | (sd == 0)
        sd = np.where(constant, 0.0, sd)
        return cls(np.where(numeric, mean, 0.0), np.where(numeric, sd, 1.0))

    @classmethod
    def load(cls, stored: Codebook | ClientScale) -> Scale | None:
        """Return the scale in a codebook, or that of one client; None if there is none."""
        return cls(np.asarray(stored.mean), np.asarray(stored.sd)) if stored.mean else None

    def standardize(self, x: Floats) -> Floats:
        """Return features (n, ..., d) with mean 0 and deviation 1; constants become 0."""
        return np.asarray(np.where(self.sd == 0, 0.0, (x - self.mean) / np.where(self.sd == 0, 1.0, self.sd)))


def scale_partition(partition: Partition, book: Codebook, scaling: Scaling) -> tuple[Partition, Codebook]:
    """Return the partition with missing values filled in and features standardized, and its codebook.

    Medians and scales are those in ``book``, if it has them from earlier data. Otherwise they are computed from the
    training samples of clients that are not new. If each client is standardized by its own training samples, new
    clients are too; raises InputError for a client that has samples but none for training. Features (d,) that are 0 or
    1 for a word are not standardized, and are 0 if the word is missing.
    """
    train_of = [np.arange(*partition.offsets[3 * client : 3 * client + 2]) for client in range(len(partition.names))]
    known = [rows for client, rows in enumerate(train_of) if partition.new is None or not partition.new[client]]
    train = np.concatenate([np.empty(0, np.int64), *known])
    x = np.asarray(partition.x)
    if scaling.fill:
        median = np.asarray(book.median) if book.median else _compute_medians(flatten_rows(x, train), book)
        x, book = np.where(np.isnan(x), median, x), replace(book, median=floats(median))
    if scaling.standardize_by == "client":
        x, scales = _standardize_by_client(partition, x, train_of, book)
        book = replace(book, scales=scales)
    elif scaling.standardize_by:
        scale = Scale.load(book) or Scale.fit(flatten_rows(x, train), find_numeric_features(book, x.shape[-1]))
        x, book = scale.standardize(x), replace(book, mean=floats(scale.mean), sd=floats(scale.sd))
    labels = _rescale_past(partition.labels, book) if scaling.standardize_by else partition.labels
    return replace(partition, x=x.astype(np.float32), labels=labels), book


def _rescale_past(labels: Labels, book: Codebook) -> Labels:
    """Return labels that find their past in standardized channels; they have none if each client has a scale."""
    if not (fields := labels.fields or {}).get("past"):
        return labels
    channel, shift, scale = fields["past"]
    past = [channel, shift + scale * book.mean[channel], scale * book.sd[channel]] if book.mean else []
    return replace(labels, fields={**fields, "past": past})


def _compute_medians(known: Floats, book: Codebook) -> Floats:
    """Return the medians (d,) of features (n, d): 0 for a feature without a value, or of a word."""
    known = np.where(np.isnan(known).all(axis=0), 0.0, known)
    return np.where(find_numeric_features(book, known.shape[-1]), np.nanmedian(known, axis=0), 0.0)


def _standardize_by_client(
    partition: Partition, x: Floats, train_of: list[NDArray[np.int64]], book: Codebook
) -> tuple[Floats, tuple[ClientScale, ...]]:
    """Return features (n, ..., d) standardized by each client's own scale, and these scales."""
    x, scales, numeric = x.astype(np.float64), [], find_numeric_features(book, x.shape[-1])
    stored = {scale.client: scale for scale in book.scales}
    for client, (name, train) in enumerate(zip(partition.names, train_of, strict=True)):
        own = slice(*partition.offsets[[3 * client, 3 * client + 3]])
        if own.start == own.stop:
            continue
        scale = Scale.load(stored[name]) if name in stored else None
        if scale is None and not len(train):
            raise InputError(
                f"client '{name}' has no training samples to standardize its features by",
                "leave it out, or standardize by all clients' training samples (pfl import --standardize)",
            )
        scale = scale or Scale.fit(flatten_rows(x, train), numeric)
        x[own] = scale.standardize(x[own])
        scales.append(ClientScale(name, floats(scale.mean), floats(scale.sd)))
    return x, tuple(scales)


def flatten_rows(x: Floats, rows: NDArray[np.int64]) -> Floats:
    """Return the values (n, d) of some samples; each step of a series is a row."""
    return np.asarray(x[rows].reshape(-1, x.shape[-1]), dtype=np.float64)


def find_numeric_features(book: Codebook, width: int) -> NDArray[np.bool_]:
    """Return which of ``width`` features (d,) are numbers instead of 0/1 for a word or a missing value."""
    flags: list[bool] = []
    for column in book.columns:
        flags += [not column.words] * len(column.features) + [False] * column.gaps
    return np.asarray(flags or [True] * width, dtype=np.bool_)


class ImageEncoder(Protocol):
    """A frozen network by which images become the features that a model takes."""

    def embed(self, x: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the features (n, d) of images (n, H, W) or (n, H, W, channels)."""


@dataclass(frozen=True)
class Preprocessing:
    """The steps from samples in a file to inputs of a model.

    ``columns`` are those of the user's table, or one per named feature; empty for arrays and images. ``median`` (d,)
    fills in missing values, and is empty if no value may be missing. ``scale`` then standardizes features, if it is not
    None. ``decoding`` are the options for pixels of images. ``name`` is the name of the artifact in messages. If a
    frozen ``encoder`` computed the features, samples may be images instead. ``dialect`` is how tables are written.
    """

    name: str
    form: Form
    columns: tuple[Column, ...] = ()
    median: tuple[float, ...] = ()
    scale: Scale | None = None
    decoding: Decoding = field(default_factory=Decoding)
    encoder: ImageEncoder | None = None
    dialect: Dialect = NO_DIALECT

    @classmethod
    def from_codebook(
        cls,
        name: str,
        book: Codebook,
        form: Form,
        client: str | None,
        decoding: Decoding | None = None,
        encoder: ImageEncoder | None = None,
    ) -> Preprocessing:
        """Return the preprocessing of samples of ``client``; None is an unknown client.

        Raises InputError if each client was standardized by its own samples, and this one has no scale.
        """
        columns = book.columns or tuple(Column(feature) for feature in book.features)
        own = next((scale for scale in book.scales if scale.client == client), None)
        if book.scales and own is None:
            raise InputError(
                f"the features of {name} were standardized by each client's own samples, and '{client}' has no scale",
                f"choose from: {', '.join(scale.client for scale in book.scales[:10])}",
            )
        scale = Scale.load(own or book)
        dialect = book.dialect or NO_DIALECT
        return cls(name, form, columns, book.median, scale, decoding or Decoding(), encoder, dialect)

    @property
    def like(self) -> Like | None:
        """The columns that a table must have; None if columns have no names."""
        return Like(self.name, (), self.columns) if self.columns else None

    @property
    def is_images(self) -> bool:
        """Whether samples are images."""
        return self.form.dtype == "uint8"

    @property
    def is_tokens(self) -> bool:
        """Whether samples are series of tokens."""
        return self.form.dtype == "int16"

    @property
    def array_kind(self) -> str | None:
        """How arrays are to be read, as by ``--samples``; None if they may be images for an encoder."""
        if self.encoder is not None:
            return None
        return "images" if self.is_images else "series" if len(self.form.shape) == 2 else "numbers"

    def fill_gaps(self, raw: RawSamples) -> NDArray[Any]:
        """Return the features (n, ...) of ``raw`` in float64, without missing values and not standardized.

        Images and tokens are returned unchanged. Raises InputError, with the place, if a value is missing, not finite
        or not a token, and if samples have another shape or kind than the model takes.
        """
        x = raw.x
        if not len(x):
            raise InputError("there are no samples to predict")
        if self.is_images or self.is_tokens:
            self._require_form(x.shape[1:], x.dtype)
            if self.is_tokens:
                self._require_tokens(raw)
            return x.astype(self.form.dtype, copy=False)
        if self.encoder is not None and x.dtype == np.uint8:
            x = self.encoder.embed(x)
        x = x.astype(np.float64)
        if not self.median:
            _require_complete(raw, x)
        cleaning.require_in_range(x, raw, None)
        if self.median and self.columns:
            width = sum(len(column.features) for column in self.columns)
            if x.shape[-1] == width:
                x, _ = cleaning.mark_gaps(x, raw.columns or self.columns, Like(self.name, (), self.columns))
        self._require_form(x.shape[1:], x.dtype)
        return np.where(np.isnan(x), self.median, x) if self.median else x

    def standardize(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return standardized features (n, ...) in the type of the partition's samples.

        Raises InputError for a number that is then too large for float32.
        """
        if self.is_images or self.is_tokens:
            return x
        with np.errstate(over="ignore"):
            ready: NDArray[Any] = (self.scale.standardize(x) if self.scale else x).astype(self.form.dtype)
        if not np.isfinite(ready).all():
            row = int(np.argwhere(~np.isfinite(ready))[0][0])
            raise InputError(f"sample {row} has a value that is too large for the model after standardization")
        return ready

    def describe_outside(self, x: NDArray[Any], known: NDArray[Any], names: Sequence[Any]) -> list[str]:
        """Return remarks on prepared features (n, ..., d) that are far outside those of training samples ``known``.

        Far is more than the range of training beyond it. ``names`` (n,) are those of the samples. At most four features
        are named.
        """
        if self.is_images or self.is_tokens or not len(known) or not len(x):
            return []
        flat = known.reshape(-1, known.shape[-1]).astype(np.float64)
        low, high = flat.min(axis=0), flat.max(axis=0)
        is_far = (x < low - (high - low)) | (x > high + (high - low))
        features = [name for each in self.columns for name in each.all_features]
        remarks = []
        for at in np.flatnonzero(is_far.reshape(-1, x.shape[-1]).any(axis=0))[:4].tolist():
            bad = np.unique(np.nonzero(is_far[..., at])[0])
            values = np.asarray([x[..., at][is_far[..., at]][0], low[at], high[at]])
            if self.scale is not None:
                values = values * self.scale.sd[at] + self.scale.mean[at]
            name = features[at] if features else f"feature {at}"
            more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
            remarks.append(
                f"'{name}' is {values[0]:.6g} in sample {names[bad[0]]}{more}, far outside of training, "
                f"{values[1]:.6g} to {values[2]:.6g}"
            )
        return remarks

    def _require_form(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Raise InputError unless samples have the shape and kind that the model takes."""
        kind = {"uint8": "images", "int16": "tokens"}.get(self.form.dtype, "features")
        expected, actual = ("x".join(map(str, sides)) for sides in (self.form.shape, shape))
        if self.is_images != (dtype == np.uint8) or (self.is_tokens and dtype.kind not in "iu"):
            raise InputError(f"{self.name} takes {kind} {expected}; the samples are {dtype} numbers")
        if shape != self.form.shape:
            raise InputError(f"{self.name} takes {kind} of shape {expected}; the samples have {actual}")

    def _require_tokens(self, raw: RawSamples) -> None:
        bad = np.argwhere((raw.x < 0) | (raw.x >= self.form.labels.outputs))
        if len(bad):
            row, *at = bad[0].tolist()
            raise InputError(
                f"{raw.place(row, 'features', at)}: {raw.x[(row, *at)]} is not a token; tokens are 0 to "
                f"{self.form.labels.outputs - 1}"
            )


def _require_complete(raw: RawSamples, x: NDArray[np.float64]) -> None:
    """Raise InputError at the first missing value."""
    gaps = np.isnan(x)
    if gaps.any():
        row, *at = np.argwhere(gaps)[0].tolist()
        raise InputError(
            f"{raw.place(row, 'features', at)}: no value",
            "fill it in, or pfl predict --missing drop leaves such samples out",
            "only pfl import --missing median stores medians for missing values",
        )
