"""The files and folders that ``pfl import`` reads: their forms, the options of each, and errors for other files."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from pflcli import registry
from pflcli.artifacts import manifest as manifests
from pflcli.artifacts.reader import open_artifact
from pflcli.data.formats import (
    ABSENT,
    Like,
    RawSamples,
    Roles,
    arrays,
    flbench,
    hugging_face,
    images,
    leaf,
    option,
    pfllib,
    require_utf8_name,
    tables,
    tff,
)
from pflcli.data.formats.delimited import Delimited
from pflcli.data.formats.given_splits import require_separate
from pflcli.data.formats.images import Decoding
from pflcli.data.formats.parquet import Parquet
from pflcli.errors import InputError, UsageError
from pflcli.foreign import parsing, require_file
from pflcli.reporter import Reporter

_TITLES = {
    "images": "images",
    "csv": "CSV",
    "parquet": "Parquet",
    "npz": "NPZ",
    "hdf5": "HDF5",
    "pfllib": "a folder of PFLlib",
    "flbench": "a folder of FL-bench",
    "hf": "a Hugging Face dataset",
    "leaf": "JSON in LEAF's layout",
    "tff": "HDF5 of TensorFlow Federated",
}
"""The forms of data, with their names in messages."""
DEALT = ("pfllib", "flbench", "leaf", "tff")
"""The forms whose folders give clients, labels and splits."""
_JOINABLE = ("leaf", "tff")
"""The dealt forms whose splits ``--split-column none`` joins."""
_PREFIXES = (*DEALT, "hf")
"""The forms that a user names before the folder, as in ``pfllib:FOLDER``."""
_FORMS_OF_OPTION = {
    "resize": (("images", "hf"), "folders of images; {} is none"),
    "convert": (("images", "hf"), "folders of images; {} is none"),
    "frame": (("images", "hf"), "folders of images; {} is none"),
    "delimiter": (("csv",), "CSV and TSV; {} is neither"),
    "categorical": (("csv", "parquet", "hf"), "tables; {} is none"),
    "layout": (("npz", "hdf5"), "NPZ and HDF5; {} is neither"),
    "samples": (("npz", "hdf5", "hf", "leaf"), "arrays; {} has none"),
}
"""The forms that an option applies to, and the end of the message for other forms."""


@dataclass(frozen=True)
class UserData:
    """A file or folder of samples, and the options to read it with."""

    path: Path
    form: str
    roles: Roles
    features: str | tuple[str, ...] | None
    decoding: Decoding
    delimiter: str | None
    categorical: str | tuple[str, ...] | None = None
    layout: str | None = None
    samples: str | None = None
    like: Like | None = None

    def check(self) -> None:
        """Raise UsageError for an option that does not apply to the form, or that contradicts another."""
        if len(self.roles.metadata) > 1:
            first, second = [option(role) for role in self.roles.metadata][:2]
            raise UsageError(
                f"{first} and {second} contradict each other: both define the splits", f"leave out {second}"
            )
        for name, (forms, data) in _FORMS_OF_OPTION.items():
            if {**vars(self), **vars(self.decoding)}[name] is not None and self.form not in forms:
                raise UsageError(f"--{name} is for {data.format(self.path)}", "leave it out")
        self.decoding.check()
        names = {"client": self.roles.client, "label": self.roles.label, "features": self.features}
        if self.roles.split == ABSENT and self.form in DEALT and self.form not in _JOINABLE:
            raise UsageError(f"--split-column none has no effect on {self.form}:{self.path}", "leave it out")
        for role, value in (names | self.roles.metadata).items():
            if value is not None and self.form in DEALT:
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
        match self.form:
            case "pfllib":
                return pfllib.find(self.path).sha256()
            case "flbench":
                return flbench.open_folder(self.path).sha256()
            case "leaf":
                return leaf.find(self.path).sha256()
            case "tff":
                return tff.find(self.path).sha256()
            case "hf":
                return hugging_face.find(self.path).sha256()
            case "images":
                return images.find(self.path, self.roles.client).sha256()
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def read(self, reporter: Reporter) -> RawSamples:
        """Read the samples without preprocessing; raises InputError or UsageError if they cannot be read.

        Raises InputError too if the splits of the file share most samples; see ``given_splits.require_separate``.
        """
        return require_separate(self._read(reporter), self.path.name)

    def _read(self, reporter: Reporter) -> RawSamples:
        with parsing(str(self.path), _TITLES[self.form], "is it complete?"):
            match self.form:
                case "csv" | "parquet":
                    table = Parquet(self.path) if self.form == "parquet" else Delimited(self.path, self.delimiter)
                    return tables.read(table, self.roles, self.features, self.categorical, self.like)
                case "npz" | "hdf5":
                    if not (self.features is None or isinstance(self.features, str)):
                        raise UsageError("--features of an array file is the name of one array", "--features x")
                    return arrays.read(self.path, self.roles, self.features, self.layout, self.samples)
                case "images":
                    album = images.find(self.path, self.roles.client)
                    with reporter.progress("read", len(album.paths)) as advance:
                        return images.read(album, self.decoding, advance)
                case "pfllib":
                    dealt = pfllib.find(self.path)
                    with reporter.progress("read", len(dealt.clients)) as advance:
                        return pfllib.read(dealt, advance)
                case "flbench":
                    return flbench.read(flbench.open_folder(self.path))
                case "leaf":
                    users = leaf.find(self.path)
                    with reporter.progress("read", sum(map(len, users.files.values()))) as advance:
                        return leaf.read(users, self.samples, self.roles.split, advance)
                case "tff":
                    files = tff.find(self.path)
                    with reporter.progress("read", len(files.paths)) as advance:
                        return tff.read(files, self.roles.split, advance)
            folder = hugging_face.find(self.path)
            with reporter.progress("read", sum(len(part.paths) for part in folder.parts)) as advance:
                return hugging_face.read(
                    folder, self.roles, self.features, self.categorical, self.like, self.decoding, self.samples, advance
                )


FORM_OF_SUFFIX = {
    ".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".npz": "npz", ".h5": "hdf5", ".hdf5": "hdf5",
}  # fmt: skip
_REMEDY_OF_SUFFIX = {
    ".xlsx": "save the sheet as CSV",
    ".xls": "save the sheet as CSV",
    ".zip": "unzip it first",
    ".npy": "np.savez('data.npz', x=x, y=y, owner=owner)",
    ".txt": "rename it to .csv or .tsv, and give --delimiter if it is neither comma nor tab",
}


def locate(data: Path | str) -> tuple[str, Path]:
    """Return the form and the path of ``data``, which may begin with the name of a form, as in ``pfllib:FOLDER``.

    Raises InputError or UsageError if pfl does not read it.
    """
    prefix, colon, rest = str(data).partition(":")
    if colon and prefix in _PREFIXES and not Path(data).exists():
        if not rest:
            raise UsageError(f"{data} names no folder", f"{prefix}:FOLDER")
        require_utf8_name(Path(rest))
        return prefix, Path(rest).expanduser()
    return identify_form(Path(data)), Path(data)


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
    if leaf.is_in_layout(path):
        raise UsageError(
            f"{path} is in LEAF's layout",
            f"pfl import leaf:{path} -o DIR",
            f"if it is FEMNIST or Shakespeare: pfl partition femnist --root {path.parent} -o DIR, or shakespeare",
        )
    suffix = path.suffix.lower()
    if suffix not in FORM_OF_SUFFIX:
        known = f"{', '.join(FORM_OF_SUFFIX)}, or a folder of images"
        raise UsageError(f"{path} has a format that pfl does not import ({known})", *_list_remedies(path))
    return FORM_OF_SUFFIX[suffix]


def _refuse_known_folder(path: Path) -> None:
    """Raise UsageError for a folder without images that another library wrote, with the prefix to type."""
    marks = {
        "pfllib": ("train/0.npz", "*/train/0.npz"),
        "flbench": ("partition.pkl", "*/partition.pkl"),
        "hf": ("state.json", "*/state.json", "*/*/state.json", "*.arrow", "*.parquet", "*/*.parquet", "*/*/*.parquet"),
    }
    names = {
        "pfllib": "PFLlib",
        "flbench": "FL-bench",
        "hf": "Hugging Face",
        "leaf": "LEAF",
        "tff": "TensorFlow Federated",
    }
    found = {
        form: next((file for mark in each for file in sorted(path.glob(mark))), None) for form, each in marks.items()
    }
    found["leaf"] = next((file for file in sorted(path.rglob("*.json")) if leaf.is_in_layout(file)), None)
    found["tff"] = next(iter(sorted(path.glob("*_train.h5"))), None)
    for form, file in found.items():
        if file is not None:
            depth = {"pfllib": 1, "leaf": int(file.parent.name in ("train", "test", "all_data"))}.get(form, 0)
            source = file if form == "tff" else path if form == "hf" else file.parents[depth]
            raise UsageError(
                f"{path} has no image, but {file.relative_to(path)}, as in a folder of {names[form]}",
                f"pfl import {form}:{source} -o DIR",
            )
    pickles = sorted([*path.rglob("*.pkl"), *path.rglob("*.pickle")])
    if pickles:
        raise UsageError(
            f"{path} has no image, but {pickles[0].relative_to(path)}, a pickle, which pfl does not open",
            "np.savez('data.npz', x=x, y=y, owner=owner, split=split), and pfl import data.npz --split-column split",
        )


def _list_remedies(path: Path) -> list[str]:
    """Return remedies for a file that cannot be imported directly."""
    cards = registry.cards("datasets")
    readers = [card.name for card in cards for name in card.facts.get("FILES", ()) if fnmatch(path.name, name)]
    if readers:
        return [f"it belongs to the dataset {readers[0]}: pfl partition {readers[0]} --root {path.parent} -o DIR"]
    suffix = path.suffix.lower()
    if suffix == ".gz":
        inner = Path(path.stem).suffix.lower()
        is_known = inner in FORM_OF_SUFFIX
        return ["gunzip it first" if is_known else "unpack it, and convert its content to CSV, Parquet or NPZ"]
    return [_REMEDY_OF_SUFFIX[suffix]] if suffix in _REMEDY_OF_SUFFIX else []
