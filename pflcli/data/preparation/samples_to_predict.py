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

from numpy.typing import NDArray

from pflcli.artifacts import manifest as manifests
from pflcli.data.formats import RawSamples, arrays, images, require_utf8_name, tables
from pflcli.data.formats.delimited import Delimited
from pflcli.data.formats.parquet import Parquet
from pflcli.data.preparation.preprocessing import Preprocessing
from pflcli.errors import InputError, UsageError
from pflcli.foreign import parsing, require_file
from pflcli.reporter import Reporter

STDIN = "-"
_TABLES = (".csv", ".tsv", ".parquet")
_ARRAYS = {".npy": "NPY", ".npz": "NPZ", ".h5": "HDF5", ".hdf5": "HDF5"}


@dataclass(frozen=True)
class SamplesToPredict:
    """Preprocessed samples ``x`` (n, ...) and their ``names`` (n,): numbers from 0, or paths of images."""

    x: NDArray[Any]
    names: tuple[int | str, ...]


@dataclass(frozen=True)
class SampleFile:
    """A file of samples (``-`` is stdin) with the array and layout of array files, and the delimiter of CSV."""

    path: Path
    features: str | None = None
    layout: str | None = None
    delimiter: str | None = None

    def read(self, preprocessing: Preprocessing, reporter: Reporter) -> SamplesToPredict:
        """Read and preprocess all samples.

        Raises UsageError for an unknown format or an option that does not apply to it, InputError for data that cannot
        be read or that the model does not take.
        """
        if str(self.path) == STDIN:
            with _copy_stdin() as path:
                return _preprocess(self._read_table(path, preprocessing), preprocessing)
        require_utf8_name(self.path)
        if self.path.is_dir():
            if manifests.is_artifact(self.path):
                raise InputError(f"{self.path} is an artifact of pfl, not samples to predict")
            return self._read_images(preprocessing, reporter)
        require_file(self.path)
        suffix = self.path.suffix.lower()
        if suffix in _TABLES:
            return _preprocess(self._read_table(self.path, preprocessing), preprocessing)
        if suffix not in _ARRAYS:
            known = f"{', '.join([*_TABLES, *_ARRAYS])}, a folder of images, or - for CSV from stdin"
            raise UsageError(f"{self.path} has a format that pfl does not read ({known})")
        self._refuse(delimiter="CSV and TSV")
        with parsing(str(self.path), _ARRAYS[suffix], "is it complete?"):
            raw = arrays.read_features(self.path, self.features, self.layout, preprocessing.array_kind)
        return _preprocess(raw, preprocessing)

    def _refuse(self, **options: str) -> None:
        """Raise UsageError if an option is given that applies only to other data."""
        for option, purpose in options.items():
            if getattr(self, option) is not None:
                raise UsageError(f"--{option} is for {purpose}; {self.path} is neither", "leave it out")

    def _read_images(self, preprocessing: Preprocessing, reporter: Reporter) -> SamplesToPredict:
        self._refuse(delimiter="CSV and TSV", features="NPZ and HDF5", layout="NPZ and HDF5")
        folder = images.find_at_any_depth(self.path)
        with reporter.progress("read", len(folder.paths)) as advance:
            raw = images.read(folder, preprocessing.decoding, advance)
        names = tuple(path.relative_to(self.path).as_posix() for path in folder.paths)
        return _preprocess(raw, preprocessing, names)

    def _read_table(self, path: Path, preprocessing: Preprocessing) -> RawSamples:
        """Read a table; its columns may be in any order, and others may be among them."""
        self._refuse(features="NPZ and HDF5", layout="NPZ and HDF5")
        shape = preprocessing.form.shape
        if len(shape) != 1 or preprocessing.is_tokens:
            raise InputError(
                f"{preprocessing.name} takes samples of shape {'x'.join(map(str, shape))}; a table has none",
                "provide them as .npz or .npy" + (", or as a folder of images" if preprocessing.is_images else ""),
            )
        is_parquet = path.suffix.lower() == ".parquet"
        if is_parquet:
            self._refuse(delimiter="CSV and TSV")
        with parsing(str(path.name), "Parquet" if is_parquet else "CSV", "is it complete?"):
            table = Parquet(path) if is_parquet else Delimited(path, self.delimiter, min_columns=1)
            raw = tables.read_features(table, preprocessing.like)
        width = raw.x.shape[1]
        if preprocessing.like is None and width != shape[0]:
            raise InputError(
                f"{path.name} has {width} columns of numbers, and {preprocessing.name} takes {shape[0]} features",
                "leave out columns that are not features, such as the client and the label",
            )
        return raw


def _preprocess(raw: RawSamples, preprocessing: Preprocessing, names: tuple[str, ...] = ()) -> SamplesToPredict:
    x = preprocessing.standardize(preprocessing.fill_gaps(raw))
    return SamplesToPredict(x, names or tuple(range(len(x))))


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
