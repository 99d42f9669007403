"""The preprocessing of import and partition, for samples that are read later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts.codebook import ClientScale, Codebook, Column
from pflcli.artifacts.kinds.partition import Form
from pflcli.data.datasets._scaling import Scale
from pflcli.data.formats import Like, Raw, cleaning
from pflcli.errors import InputError


class ImageEncoder(Protocol):
    """A frozen network by which images become the features that a model takes."""

    def embed(self, x: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the features (n, d) of images (n, H, W) or (n, H, W, channels)."""


@dataclass(frozen=True)
class Preprocessing:
    """The steps from samples in a file to inputs of a model.

    ``columns`` are those of the user's table, empty for arrays and images. ``median`` (d,) fills in missing values, and
    is empty if no value may be missing. ``scale`` then standardizes features, if it is not None. ``resize`` is the
    side of images in pixels. ``name`` is the name of the artifact in messages. If a frozen ``encoder`` computed the
    features, samples may be images instead.
    """

    name: str
    form: Form
    columns: tuple[Column, ...] = ()
    median: tuple[float, ...] = ()
    scale: Scale | None = None
    resize: int | None = None
    encoder: ImageEncoder | None = None

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

    def fill_gaps(self, raw: Raw) -> NDArray[Any]:
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
            _require_values(raw, x)
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

    def _require_form(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Raise InputError unless samples have the shape and kind that the model takes."""
        kinds = {"uint8": "images", "int16": "tokens"}
        expected = kinds.get(self.form.dtype, "features")
        if self.is_images != (dtype == np.uint8) or (self.is_tokens and dtype.kind not in "iu"):
            raise InputError(f"{self.name} takes {expected} {_sides(self.form.shape)}; the samples are {dtype} numbers")
        if shape != self.form.shape:
            raise InputError(
                f"{self.name} takes {expected} of shape {_sides(self.form.shape)}; the samples have {_sides(shape)}"
            )

    def _require_tokens(self, raw: Raw) -> None:
        bad = np.argwhere((raw.x < 0) | (raw.x >= self.form.classes))
        if len(bad):
            row, *at = bad[0].tolist()
            raise InputError(
                f"{raw.place(row, 'features', at)}: {raw.x[(row, *at)]} is not a token; tokens are 0 to "
                f"{self.form.classes - 1}"
            )


def _require_values(raw: Raw, x: NDArray[np.float64]) -> None:
    """Raise InputError at the first missing value."""
    gaps = np.isnan(x)
    if gaps.any():
        row, *at = np.argwhere(gaps)[0].tolist()
        raise InputError(
            f"{raw.place(row, 'features', at)}: no value",
            "fill it in; only pfl import --missing median stores medians for missing values",
        )


def _sides(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def from_codebook(
    name: str,
    book: Codebook,
    form: Form,
    client: str | None,
    resize: int | None = None,
    encoder: ImageEncoder | None = None,
) -> Preprocessing:
    """Return the preprocessing of samples of ``client``; None is an unknown client.

    Raises InputError if each client was standardized by its own samples, and this one has no scale.
    """
    return Preprocessing(name, form, columns(book), book.median, _scale(name, book, client), resize, encoder)


def columns(book: Codebook) -> tuple[Column, ...]:
    """Return the columns that features are read from: those of the user's table, or one per named feature."""
    return book.columns or tuple(Column(name) for name in book.features)


def numeric(book: Codebook, width: int) -> NDArray[np.bool_]:
    """Return which of ``width`` features (d,) are numbers instead of 0/1 for a word or a missing value."""
    flags: list[bool] = []
    for column in book.columns:
        flags += [not column.words] * max(1, len(column.words)) + [False] * column.gaps
    return np.asarray(flags or [True] * width, dtype=np.bool_)


def _scale(name: str, book: Codebook, client: str | None) -> Scale | None:
    if book.scales:
        by_client: dict[str, ClientScale] = {scale.client: scale for scale in book.scales}
        if client not in by_client:
            raise InputError(
                f"the features of {name} were standardized by each client's own samples, and '{client}' has no scale",
                f"choose from: {', '.join(list(by_client)[:10])}",
            )
        return Scale(np.asarray(by_client[client].mean), np.asarray(by_client[client].sd))
    return Scale(np.asarray(book.mean), np.asarray(book.sd)) if book.mean else None
