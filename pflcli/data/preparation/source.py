"""What ``pfl import`` reads, and how."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from pflcli.data.formats import ABSENT, Like, Raw, Roles, arrays, images, option, tables
from pflcli.data.formats.table import Table
from pflcli.errors import UsageError
from pflcli.foreign import parsing
from pflcli.reporter import Reporter

_FORMS = {"images": "images", "csv": "CSV", "parquet": "Parquet", "npz": "NPZ", "hdf5": "HDF5"}


@dataclass(frozen=True)
class Source:
    """What to read, and how."""

    path: Path
    form: str
    roles: Roles
    features: str | tuple[str, ...] | None
    resize: int | None
    delimiter: str | None
    categorical: str | tuple[str, ...] | None = None
    layout: str | None = None
    like: Like | None = None

    def check(self) -> None:
        """Raise UsageError for an option that the form has no use for, or that contradicts another."""
        if len(self.roles.beside) > 1:
            first, second = [option(role) for role in self.roles.beside][:2]
            raise UsageError(
                f"{first} and {second} contradict each other: both say how samples are split", f"leave out {second}"
            )
        if self.resize is not None and self.form != "images":
            raise UsageError(f"--resize is for folders of images; {self.path} is none", "leave it out")
        if self.resize is not None and not 1 <= self.resize <= 4096:
            raise UsageError(f"--resize {self.resize} is not between 1 and 4096 pixels", "--resize 32")
        if self.delimiter is not None and self.form != "csv":
            raise UsageError(f"--delimiter is for CSV and TSV; {self.path} is neither", "leave it out")
        if self.categorical is not None and self.form not in ("csv", "parquet"):
            raise UsageError(f"--categorical is for tables; {self.path} is none", "leave it out")
        if self.layout is not None and self.form not in ("npz", "hdf5"):
            raise UsageError(f"--layout is for NPZ and HDF5; {self.path} is neither", "leave it out")
        if self.form == "images":
            names = {"client": self.roles.client, "label": self.roles.label, "features": self.features}
            for role, value in (names | self.roles.beside).items():
                if value is not None and (role, value) != ("client", ABSENT):
                    raise UsageError(
                        f"{option(role)} is for tables and arrays; in a folder of images the layout says it",
                        "LABEL/IMAGE" if self.roles.client == ABSENT else "CLIENT/LABEL/IMAGE",
                    )

    def sha256(self) -> str:
        """A hash of the file, or of all images."""
        if self.form == "images":
            return images.find(self.path, self.roles.client).sha256()
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def read(self, reporter: Reporter) -> Raw:
        """Read the samples as they stand there; raises InputError or UsageError for what cannot be read."""
        with parsing(str(self.path), _FORMS[self.form], "is it whole?"):
            return self._read(reporter)

    def _read(self, reporter: Reporter) -> Raw:
        if self.form == "images":
            folder = images.find(self.path, self.roles.client)
            with reporter.progress("read", len(folder.paths)) as advance:
                return images.read(folder, self.resize, advance)
        if self.form == "csv":
            from pflcli.data.formats.delimited import Delimited

            return self._table(Delimited(self.path, self.delimiter))
        if self.form == "parquet":
            from pflcli.data.formats.parquet import Parquet

            return self._table(Parquet(self.path))
        if not (self.features is None or isinstance(self.features, str)):
            raise UsageError("--features of an array file is the name of one array", "--features x")
        read = arrays.read_npz if self.form == "npz" else arrays.read_hdf5
        return read(self.path, self.roles, self.features, self.layout)

    def _table(self, table: Table) -> Raw:
        return tables.read(table, self.roles, self.features, self.categorical, self.like)
