"""The files and folders that ``pfl import`` reads: their forms, the options of each, and errors for other files."""

from __future__ import annotations

import hashlib
import os
import shlex
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.codebook import NO_DIALECT, Dialect
from pflcli.artifacts.reader import open_artifact
from pflcli.core import plugins, registry
from pflcli.core.errors import InputError, UsageError
from pflcli.core.foreign import parsing, require_file
from pflcli.core.reporter import Reporter
from pflcli.core.wording import listed
from pflcli.data.formats import (
    ABSENT,
    Like,
    RawSamples,
    Roles,
    arrays,
    frames,
    images,
    option,
    require_utf8_name,
    tables,
)
from pflcli.data.formats.cells import SPACE
from pflcli.data.formats.client_files import ClientFiles, name_clients
from pflcli.data.formats.columns import Table
from pflcli.data.formats.delimited import COMPRESSED, Delimited, content_suffix
from pflcli.data.formats.given_splits import add_splits, find_splits, require_no_splits, require_separate
from pflcli.data.formats.images import Decoding
from pflcli.data.formats.parquet import Parquet

_TITLES = {
    "images": "images",
    "csv": "CSV",
    "parquet": "Parquet",
    "excel": "Excel",
    "stata": "Stata",
    "spss": "SPSS",
    "feather": "Feather",
    "json": "JSON",
    "tables": "tables",
    "npz": "NPZ",
    "hdf5": "HDF5",
}
"""The forms of data, with their names in messages."""
_PICKLED = {"pfllib": "PFLlib", "flbench": "FL-bench"}
"""Libraries whose folders contain pickles, which pfl does not open."""
TABLES = ("csv", "parquet", "excel", "stata", "spss", "feather", "json", "tables")
"""The forms that are tables; "tables" are several files, one per client or the parts of one."""
_CELLS = (TABLES, "tables; {} is none")
_SHEETS = (("csv", "excel", "tables"), "CSV, other text and Excel; {} is none")
_FORMS_OF_OPTION = {
    "resize": (("images",), "folders of images; {} is none"),
    **dict.fromkeys(("convert", "frame"), (("images",), "folders of images; {} is none")),
    **dict.fromkeys(("delimiter", "comment"), (("csv", "tables"), "CSV and TSV; {} is neither")),
    **dict.fromkeys(("skip_rows", "skip_footer", "header", "names"), _SHEETS),
    "sheet": (("excel", "tables"), "Excel; {} is none"),
    **dict.fromkeys(("decimal", "thousands", "strip", "na", "categorical", "leave_out"), _CELLS),
    "date_format": ((*TABLES, "npz", "hdf5"), "tables and arrays; {} is neither"),
    "layout": (("npz", "hdf5"), "NPZ and HDF5; {} is neither"),
    "samples": (("npz", "hdf5"), "arrays; {} has none"),
}
"""The forms that an option applies to, and the end of the message for other forms; plug-ins name options of theirs."""


class Found(Protocol):
    """The files of data in a format of a plug-in."""

    @property
    def count(self) -> int:
        """The number of files."""

    def sha256(self) -> str:
        """Return a hash of all files."""


class Format(Protocol):
    """The reader of a format, a module of a plug-in."""

    @abstractmethod
    def find(self, path: Path) -> Found:
        """Find the files; raises InputError if there are none."""

    @abstractmethod
    def read(self, found: Any, asked: UserData, advance: Callable[[int, str], None]) -> RawSamples:
        """Read all samples; calls ``advance(1, "")`` after each file."""

    @abstractmethod
    def recognize(self, path: Path) -> tuple[Path, list[str]] | None:
        """Return which file shows that a file, or a folder without images, has this format, and what to type."""


def _format(form: str) -> Format | None:
    """Return the reader of a format of a plug-in; None for other forms, among them all that pfl itself reads."""
    if form in _TITLES:
        if form in (added := plugins.added("FORMATS")):
            plugins.leave_out(f"format {form}", added[form][0], "pfl has a format of this name")
        return None
    module = plugins.load("FORMATS", form, "reader")
    return None if module is None else registry.complete(module, f"{module.__file__}: format {form}", Format)


def takes_option(form: str, name: str) -> bool:
    """Return whether one of the options in ``_FORMS_OF_OPTION`` applies to data of this form."""
    return form in _FORMS_OF_OPTION[name][0] or name in plugins.facts_of("FORMATS", form).get("options", ())


def require_applicable(form: str, where: object, given: Mapping[str, Any]) -> None:
    """Raise UsageError for an option ``given`` that does not apply to data of this form."""
    for name, (_, data) in _FORMS_OF_OPTION.items():
        if given.get(name) not in (None, ()) and not takes_option(form, name):
            raise UsageError(f"--{name.replace('_', '-')} is for {data.format(where)}", "leave it out")


@dataclass(frozen=True)
class UserData:
    """A file or folder of samples, and the options to read it with."""

    path: Path
    form: str
    roles: Roles
    features: str | tuple[str, ...] | None
    decoding: Decoding
    dialect: Dialect = NO_DIALECT
    categorical: str | tuple[str, ...] | None = None
    layout: str | None = None
    samples: str | None = None
    like: Like | None = None
    leave_out: str | tuple[str, ...] | None = None
    files: tuple[Path, ...] = ()
    """the files of the form "tables", whose folder is ``path``"""

    def check(self, typed: Dialect) -> None:
        """Raise UsageError for an option that does not apply to the form, or that contradicts another.

        ``typed`` is the part of ``dialect`` that was not taken over from earlier data.
        """
        if len(self.roles.splitting) > 1:
            first, second = [option(role) for role in self.roles.splitting][:2]
            raise UsageError(
                f"{first} and {second} contradict each other: both define the splits", f"leave out {second}"
            )
        own = {name: getattr(self, name) for name in ("categorical", "layout", "samples", "leave_out")}
        # Data of every form have names, so --na applies to all.
        require_applicable(self.form, self.path, replace(typed, na=None).given() | own | vars(self.decoding))
        names = {"client": self.roles.client, "label": self.roles.label, "features": self.features}
        for role, value in (names | self.roles.metadata).items():
            if value is not None and plugins.facts_of("FORMATS", self.form).get("deals"):
                raise UsageError(
                    f"{option(role)} is for tables and arrays; "
                    f"{self.form}:{self.path} gives clients, labels and splits",
                    "leave it out",
                )
            if value is not None and self.form == "images" and (role, value) != ("client", ABSENT):
                raise UsageError(
                    f"{option(role)} is for tables and arrays; in a folder of images the folders give it",
                    "LABEL/IMAGE" if self.roles.client == ABSENT else "CLIENT/LABEL/IMAGE",
                )

    def sha256(self) -> str:
        """Return a hash of the file, or of all files of a folder that are read."""
        if added := _format(self.form):
            return added.find(self.path).sha256()
        if self.form == "images":
            return images.find(self.path, self.roles.client, self.roles.split).sha256()
        if self.form == "tables":
            names = name_clients(self.files)
            return hashlib.sha256("\n".join([*names, *map(_hash_file, self.files)]).encode()).hexdigest()
        return _hash_file(self.path)

    def read(self, reporter: Reporter) -> RawSamples:
        """Read the samples without preprocessing; raises InputError or UsageError if they cannot be read.

        Raises InputError too if names may be splits, or if splits share most samples; see ``given_splits``.
        """
        raw = replace(self._read(reporter), dialect=self.dialect)
        if self.like is None:
            require_no_splits(raw, self.roles)
        return require_separate(raw, self.path.name)

    def _read(self, reporter: Reporter) -> RawSamples:
        added = _format(self.form)
        title = plugins.facts_of("FORMATS", self.form)["title"] if added else _TITLES[self.form]
        with parsing(str(self.path), title, "is it complete?"):
            if added:
                found = added.find(self.path)
                with reporter.progress("read", found.count) as advance:
                    return added.read(found, self, advance)
            if self.form == "tables":
                return self._read_files()
            if self.form in TABLES:
                return self._read_table(open_table(self.path, self.form, self.dialect), self.roles)
            if self.form == "images":
                album = images.find(self.path, self.roles.client, self.roles.split)
                with reporter.progress("read", len(album.paths)) as advance:
                    return images.read(album, self.decoding, advance)
            if not (self.features is None or isinstance(self.features, str)):
                raise UsageError("--features of an array file is the name of one array", "--features x")
            return arrays.read(self.path, self.roles, self.features, self.layout, self.samples)

    def _read_table(self, table: Table, roles: Roles) -> RawSamples:
        return tables.read(table, roles, self.features, self.categorical, self.like, self.dialect, self.leave_out)

    def _read_files(self) -> RawSamples:
        """Read several tables; without ``--client``, each file's name is its client, otherwise it may be a split."""
        parts = []
        for path in self.files:
            form = identify_form(path)
            with parsing(str(path), _TITLES[form], "is it complete?"):
                parts.append(open_table(path, form, self.dialect))
        joined = ClientFiles(self.files, parts, self.path.name)
        if self.roles.client is not None:
            raw = self._read_table(joined, self.roles)
            splits = find_splits(joined.clients)
            words = np.asarray([splits.get(name, name) for name in joined.owner.tolist()])
            return add_splits(raw, words, self.roles, self.path.name) if splits else raw
        raw = self._read_table(joined, replace(self.roles, client=ABSENT))
        return replace(raw, owner=joined.owner)


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_table(path: Path, form: str, dialect: Dialect, min_columns: int = 2) -> Table:
    """Open a table of this form; raises InputError or UsageError if it cannot be read."""
    if form == "csv":
        return Delimited(path, dialect, min_columns)
    return Parquet(path) if form == "parquet" else frames.read(path, form, dialect)


def choose_dialect(asked: Any, earlier: Dialect | None = None) -> tuple[Dialect, Dialect]:
    """Return the dialect that the options of ``asked`` give, and the same with those of ``earlier`` data for others.

    The word "none" is given where an earlier table has a mark that this one lacks.
    Raises UsageError for a value that no table can have.
    """
    given: dict[str, Any] = {}
    for each in fields(Dialect):
        value = getattr(asked, each.name, None)
        if value is None:
            continue
        if each.name == "label_map":
            value = tuple((str(old), str(new)) for old, new in dict(value).items())
        elif each.name in ("strip", "na", "names"):
            value = (value,) if isinstance(value, str) else tuple(map(str, value))
            value = () if each.name == "strip" and value == (ABSENT,) else value
        elif each.name in ("thousands", "comment") and value == ABSENT:
            value = ""
        given[each.name] = value
    typed = Dialect(**given)
    # A later file without a footer would lose its last sample.
    both = typed if earlier is None else replace(earlier, **{"skip_footer": None, **typed.given()})
    if typed.header and typed.names is None:
        both = replace(both, names=None)
    for name in ("decimal", "thousands"):
        value = getattr(typed, name)
        if value and value != SPACE and (len(value) != 1 or value.isalnum()):
            raise UsageError(f"--{name} '{value}' is not one character", "--decimal , or --thousands .")
    if both.thousands == (both.decimal or "."):
        raise UsageError(f"'{both.thousands}' cannot separate both decimals and thousands", "--decimal , --thousands .")
    return typed, both


FORM_OF_SUFFIX = {
    ".csv": "csv", ".tsv": "csv", ".tab": "csv", ".txt": "csv", ".dat": "csv", ".data": "csv", ".parquet": "parquet",
    **frames.FORM_OF_SUFFIX, ".npz": "npz", ".h5": "hdf5", ".hdf5": "hdf5",
}  # fmt: skip
_REMEDY_OF_SUFFIX = {
    ".xls": "save the sheet as .xlsx or CSV",
    ".ods": "save the sheet as .xlsx or CSV",
    ".npy": "np.savez('data.npz', x=x, y=y, owner=owner)",
    ".arff": "pandas.DataFrame(scipy.io.arff.loadarff(FILE)[0]).to_csv('table.csv', index=False)",
    ".sas7bdat": "pandas.read_sas(FILE, encoding='utf-8').to_csv('table.csv', index=False)",
    ".rds": "write.csv(readRDS(FILE), 'table.csv', row.names = FALSE) in R",
}


def locate(data: Path | str | Sequence[Path | str]) -> tuple[str, Path, tuple[Path, ...]]:
    """Return the form, the path and the files of ``data``, which may begin with a format, as in ``FORMAT:FOLDER``.

    Several tables, or a folder of tables, have the form "tables", and their common folder is the path. Raises
    InputError or UsageError if pfl does not read it.
    """
    if not isinstance(data, Path | str):
        if len(data) != 1:
            return _locate_files([Path(each) for each in data])
        data = data[0]
    prefix, colon, rest = str(data).partition(":")
    if colon and prefix in _PICKLED and not Path(data).exists():
        raise _pickles_error(data, prefix)
    if colon and not Path(data).exists() and (why := plugins.why_missing(prefix)):
        raise UsageError(f"pfl does not read {prefix}: {why}")
    if colon and prefix in plugins.added("FORMATS") and not Path(data).exists():
        if not rest:
            raise UsageError(f"{data} names no data", plugins.facts_of("FORMATS", prefix)["words"])
        require_utf8_name(Path(rest))
        return prefix, Path(rest).expanduser(), ()
    files = _list_tables(Path(data))
    return ("tables", Path(data), files) if files else (identify_form(Path(data)), Path(data), ())


def _locate_files(paths: Sequence[Path]) -> tuple[str, Path, tuple[Path, ...]]:
    """Return "tables", the common folder and the files; raises UsageError unless each of several files is a table."""
    if not paths:
        raise UsageError("there is no data to import", "pfl import FILE ...")
    for path in paths:
        if identify_form(path) not in TABLES:
            raise UsageError(f"{path} is not a table, and several files can only be tables", "import it alone")
    if len({path.resolve() for path in paths}) < len(paths):
        raise UsageError("the same file is given twice", "name each file once")
    return "tables", Path(os.path.commonpath([path.absolute().parent for path in paths])), tuple(paths)


def _list_tables(folder: Path) -> tuple[Path, ...]:
    """Return the tables in a folder without folders; raises UsageError for tables beside other files."""
    if not folder.is_dir() or manifests.is_artifact(folder):
        return ()
    entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    known = [path for path in entries if path.is_file() and FORM_OF_SUFFIX.get(content_suffix(path)) in TABLES]
    if not known or any(path.is_dir() for path in entries):
        return ()
    for path in known:
        require_utf8_name(path)
    if len(known) < len(entries) or len({content_suffix(path) for path in known}) > 1:
        _refuse_known_folder(folder)
        raise UsageError(
            f"{folder} contains files of several kinds: {listed([path.name for path in entries], 4)}",
            f"name the tables: pfl import {shlex.quote(str(folder))}/*{content_suffix(known[0])} ...",
        )
    return tuple(known)


def identify_form(path: Path) -> str:
    """Return the form of a file or folder; raises InputError or UsageError if pfl does not read it."""
    require_utf8_name(path)
    if path.is_dir():
        if manifests.is_artifact(path):
            raise InputError(f"{path} is an artifact of pfl ({open_artifact(path).kind}), not data to import")
        if not images.has_image(path):
            _refuse_known_folder(path)
        return "images"
    require_file(path)
    _refuse_formats(path)
    suffix = content_suffix(path)
    is_compressed = path.suffix.lower() in COMPRESSED
    form = FORM_OF_SUFFIX.get(suffix, "csv" if path.suffix.lower() == ".zip" and not suffix else "")
    is_read = form == "csv" or (form == "json" and not _list_readers(path)) or (form and not is_compressed)
    if not is_read:
        known = f"{', '.join(FORM_OF_SUFFIX)}, compressed text such as .csv.gz and .jsonl.gz, or a folder of images"
        raise UsageError(f"{path} has a format that pfl does not import ({known})", *_list_remedies(path))
    return form


def _refuse_known_folder(path: Path) -> None:
    """Raise UsageError for a folder without images that another tool wrote, with what to type."""
    marks = {
        "pfllib": ("train/0.npz", "*/train/0.npz"),
        "flbench": ("partition.pkl", "*/partition.pkl"),
    }
    for form, each in marks.items():
        if any(next(iter(path.glob(mark)), None) for mark in each):
            raise _pickles_error(path, form)
    _refuse_formats(path)
    pickles = sorted([*path.rglob("*.pkl"), *path.rglob("*.pickle")])
    if pickles:
        raise UsageError(
            f"{path} has no image, but {pickles[0].relative_to(path)}, a pickle, which pfl does not open",
            "np.savez('data.npz', x=x, y=y, owner=owner, split=split), and pfl import data.npz --split-column split",
        )


def _refuse_formats(path: Path) -> None:
    """Raise UsageError for a file, or a folder without images, in a format that the user has to name."""
    for form, (_, facts) in plugins.added("FORMATS").items():
        added = _format(form)
        found = added and added.recognize(path)
        if found:
            file, remedies = found
            if file == path:
                raise UsageError(f"{path} is {facts['title']}", *remedies)
            inside = f"{path} has no image, but {file.relative_to(path)}"
            raise UsageError(f"{inside}, as in a folder of {facts['tool']}", *remedies)


def _pickles_error(source: Path | str, form: str) -> UsageError:
    """Return the error for a folder of PFLlib or FL-bench."""
    return UsageError(
        f"{source} is a folder of {_PICKLED[form]}: it contains pickles, which pfl does not open",
        "docs/cookbook/pfllib-flbench.md converts it, for pfl import data.npz -o DIR",
    )


def _list_readers(path: Path) -> list[str]:
    """Return the datasets of the registry that have a file of this name."""
    cards = registry.cards("datasets")
    return [card.name for card in cards for name in card.facts.get("FILES", ()) if fnmatch(path.name, name)]


def _list_remedies(path: Path) -> list[str]:
    """Return remedies for a file that cannot be imported directly."""
    readers = _list_readers(path)
    if readers:
        return [f"it belongs to the dataset {readers[0]}: pfl partition {readers[0]} --root {path.parent} -o DIR"]
    suffix = path.suffix.lower()
    if suffix in COMPRESSED:
        is_known = content_suffix(path) in FORM_OF_SUFFIX
        return ["unpack it first" if is_known else "unpack it, and convert its content to CSV, Parquet or NPZ"]
    if suffix == ".mat":
        with path.open("rb") as file:
            is_new = file.read(10) == b"MATLAB 7.3"
        return [f"np.savez('data.npz', x=x, y=y, owner=owner), with {'h5py.File' if is_new else 'scipy.io.loadmat'}"]
    return [_REMEDY_OF_SUFFIX[suffix]] if suffix in _REMEDY_OF_SUFFIX else []
