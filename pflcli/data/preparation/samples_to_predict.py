"""Reads and preprocesses the samples of ``pfl predict`` from a file, a folder of images or stdin."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.codebook import NO_DIALECT, Dialect
from pflcli.core.errors import InputError, UsageError
from pflcli.core.foreign import parsing, require_file
from pflcli.core.reporter import Reporter
from pflcli.data.formats import RawSamples, arrays, images, require_utf8_name, tables
from pflcli.data.preparation.preprocessing import Preprocessing
from pflcli.data.preparation.user_data import identify_form, open_table, require_applicable

STDIN = "-"
CLIENT_COLUMN, ID_COLUMN = "client-column", "id-column"
"""The metadata of a table of samples to predict, by the options that name their columns."""
_ARRAYS = {".npy": "NPY", ".npz": "NPZ", ".h5": "HDF5", ".hdf5": "HDF5"}


@dataclass(frozen=True)
class SamplesToPredict:
    """Samples ``raw`` and their ``names`` (n,): numbers from 0, paths of images, or the words of an id column.

    ``owner`` (n,) is the client of each sample, None if the file does not say it.
    """

    raw: RawSamples
    names: tuple[int | str, ...]

    @property
    def owner(self) -> NDArray[np.str_] | None:
        """The client of each sample (n,), None if the file does not say it."""
        return self.raw.metadata.get(CLIENT_COLUMN)

    def prepare(self, preprocessing: Preprocessing, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the samples at ``rows``, preprocessed for a client."""
        return preprocessing.standardize(preprocessing.fill_gaps(self.raw.select(rows)))


@dataclass(frozen=True)
class SampleFile:
    """A file of samples (``-`` is stdin) with the array and layout of array files, and the ``dialect`` of tables.

    ``typed`` is the part of the dialect that the user gave for this file. With ``new_words_are_missing``, a word that
    training lacks is a missing value. The columns ``client_column`` and ``id_column`` of a table have each sample's
    client and name. With ``drops_incomplete``, samples without a value are left out.
    """

    path: Path
    features: str | None = None
    layout: str | None = None
    dialect: Dialect = NO_DIALECT
    typed: Dialect = NO_DIALECT
    new_words_are_missing: bool = False
    client_column: str | None = None
    id_column: str | None = None
    drops_incomplete: bool = False

    def read(self, preprocessing: Preprocessing, reporter: Reporter) -> SamplesToPredict:
        """Read all samples; those without a value are refused when they are prepared, unless they are left out.

        Raises UsageError for an unknown format or an option that does not apply to it, InputError for data that cannot
        be read or that the model does not take.
        """
        if str(self.path) == STDIN:
            with _copy_stdin() as path:
                return self._name(self._read_table(path, "csv", preprocessing, reporter), preprocessing, reporter)
        require_utf8_name(self.path)
        if self.path.is_dir():
            if manifests.is_artifact(self.path):
                raise InputError(f"{self.path} is an artifact of pfl, not samples to predict")
            return self._read_images(preprocessing, reporter)
        require_file(self.path)
        suffix = self.path.suffix.lower()
        if suffix not in _ARRAYS:
            form = identify_form(self.path)
            return self._name(self._read_table(self.path, form, preprocessing, reporter), preprocessing, reporter)
        self._refuse(client_column="tables", id_column="tables")
        require_applicable(_ARRAYS[suffix].lower(), self.path, self.typed.given())
        with parsing(str(self.path), _ARRAYS[suffix], "is it complete?"):
            raw = arrays.read_features(self.path, self.features, self.layout, preprocessing.array_kind)
        return self._name(raw, preprocessing, reporter)

    def _name(self, raw: RawSamples, preprocessing: Preprocessing, reporter: Reporter) -> SamplesToPredict:
        """Return the samples with their names, without incomplete ones if they are to be left out."""
        rows = np.arange(len(raw.x))
        if self.drops_incomplete and not preprocessing.median and raw.x.dtype.kind == "f":
            rows = np.flatnonzero(~np.isnan(raw.x.reshape(len(raw.x), -1)).any(axis=1))
            if len(rows) < len(raw.x):
                reporter.say(f"{len(raw.x) - len(rows)} of {len(raw.x)} samples lack a value and are left out")
        names = raw.metadata[ID_COLUMN] if ID_COLUMN in raw.metadata else np.arange(len(raw.x))
        return SamplesToPredict(raw.select(rows), tuple(names[rows].tolist()))

    def _refuse(self, **options: str) -> None:
        """Raise UsageError if an option is given that applies only to other data."""
        for option, purpose in options.items():
            if getattr(self, option) is not None:
                typed = option.replace("_", "-")
                raise UsageError(f"--{typed} is for {purpose}; {self.path} is none of them", "leave it out")

    def _read_images(self, preprocessing: Preprocessing, reporter: Reporter) -> SamplesToPredict:
        self._refuse(features="NPZ and HDF5", layout="NPZ and HDF5", client_column="tables", id_column="tables")
        require_applicable("images", self.path, self.typed.given())
        folder = images.find_at_any_depth(self.path)
        with reporter.progress("read", len(folder.paths)) as advance:
            raw = images.read(folder, preprocessing.decoding, advance)
        names = tuple(path.relative_to(self.path).as_posix() for path in folder.paths)
        return SamplesToPredict(raw, names)

    def _read_table(self, path: Path, form: str, preprocessing: Preprocessing, reporter: Reporter) -> RawSamples:
        """Read a table; its columns may be in any order, and others may be among them."""
        self._refuse(features="NPZ and HDF5", layout="NPZ and HDF5")
        require_applicable(form, self.path, self.typed.given())
        shape = preprocessing.form.shape
        if len(shape) != 1 or preprocessing.is_tokens:
            raise InputError(
                f"{preprocessing.name} takes samples of shape {'x'.join(map(str, shape))}; a table has none",
                "provide them as .npz or .npy" + (", or as a folder of images" if preprocessing.is_images else ""),
            )
        with parsing(str(path.name), "CSV" if form == "csv" else form.capitalize(), "is it complete?"):
            table = open_table(path, form, self.dialect, min_columns=1)
            roles = {CLIENT_COLUMN: self.client_column, ID_COLUMN: self.id_column}
            raw = tables.read_features(
                table,
                preprocessing.like,
                self.dialect,
                {role: column for role, column in roles.items() if column is not None},
                new_words_are_missing=self.new_words_are_missing,
            )
        if self.new_words_are_missing:
            for remark in raw.remarks:
                if "training lacks" in remark:
                    reporter.say(f"WARNING: {remark}, treated as missing")
        width = raw.x.shape[1]
        if preprocessing.like is None and width != shape[0]:
            raise InputError(
                f"{path.name} has {width} columns of numbers, and {preprocessing.name} takes {shape[0]} features",
                "leave out columns that are not features, such as the client and the label",
            )
        return raw


@contextmanager
def _copy_stdin() -> Iterator[Path]:
    """Yield the path of a copy of stdin: a table is read twice, which is not possible with a pipe.

    Raises InputError if stdin is closed or cannot be copied.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "stdin")
        try:
            with path.open("wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
        except (OSError, AttributeError) as error:  # a closed stdin is None
            raise InputError(f"stdin cannot be read: {getattr(error, 'strerror', None) or 'it is closed'}") from None
        require_file(path)
        yield path
