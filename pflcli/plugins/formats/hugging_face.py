"""Hugging Face datasets on disk: those that ``save_to_disk`` wrote, and folders of Parquet files.

The library ``datasets`` opens them and knows their features: images, arrays, and the names of classes. A folder of
folders has one client per folder, as partitions of Flower Datasets are saved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.errors import InputError, UsageError
from pflcli.core.foreign import parsing, require_file, require_short
from pflcli.core.wording import counted, listed
from pflcli.data.formats import (
    ABSENT,
    RawSamples,
    Roles,
    arrays,
    hash_files,
    images,
    require_folder,
    require_utf8_name,
    tables,
)
from pflcli.data.formats.columns import find_positions, list_columns, locate_cell, split_names
from pflcli.data.formats.given_splits import add_splits, find_split, find_splits
from pflcli.data.formats.images import Decoding
from pflcli.data.formats.parquet import iterate_batches, load_batches, to_series
from pflcli.data.preparation.user_data import UserData

_SAVED = ("dataset_dict.json", "state.json")
"""The files of which ``save_to_disk`` writes one beside the data."""


@dataclass(frozen=True)
class Part:
    """The files and ``data`` of one split of one client; ``client`` and ``split`` are empty if the folder has none.

    ``data`` is a ``datasets.Dataset``, or None for Parquet files that are not open yet.
    """

    client: str
    split: str
    paths: tuple[Path, ...]
    data: Any = None

    def label(self, root: Path) -> str:
        """Return its name in messages: its path below ``root``."""
        is_alone = len(self.paths) == 1 and self.paths[0].suffix == ".parquet"
        path = self.paths[0] if is_alone else self.paths[0].parent
        return path.relative_to(root).as_posix() if path != root else root.name

    def open(self) -> Any:
        """Return the ``datasets.Dataset``; raises InputError for damaged files, or more than their size allows."""
        name = str(self.paths[0].parent if len(self.paths) > 1 else self.paths[0])
        if self.data is None:
            with parsing(name, "Parquet", "is it complete?"):
                return _load_parquet(self.paths)
        with parsing(name, "Arrow", "is it complete?"):
            load_batches(self.data.data.table.to_batches(), name, sum(path.stat().st_size for path in self.paths))
        return self.data


@dataclass(frozen=True)
class Folder:
    """The parts of a folder, and the names of splits that are left out."""

    root: Path
    parts: tuple[Part, ...]
    left_out: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """The number of files."""
        return sum(len(part.paths) for part in self.parts)

    def sha256(self) -> str:
        """Return a hash of all files and their paths."""
        return hash_files(self.root, (path for part in self.parts for path in part.paths))


def find(path: Path) -> Folder:
    """Open a dataset; raises InputError if there is none, UsageError if ``datasets`` is not installed."""
    require_folder(path)
    _require_library()
    parts = _open_saved(path, "") or _find_client_parts(path) or _find_parquet_parts(path)
    if not parts:
        raise InputError(
            f"{path} contains no Hugging Face dataset",
            "hf:FOLDER, where FOLDER was written by dataset.save_to_disk(FOLDER), or contains .parquet files",
        )
    for file in (file for part in parts for file in part.paths):
        require_utf8_name(file)
        require_file(file)
    return _assign_splits(path, parts)


def _require_library() -> Any:
    """Return the library ``datasets``; raises UsageError if it is not installed."""
    try:
        import datasets
    except ImportError:
        raise UsageError(
            "reading a Hugging Face dataset needs datasets, which is not installed", "pip install 'pflcli[hf]'"
        ) from None
    datasets.disable_progress_bars()
    return datasets


def _open_saved(folder: Path, client: str) -> list[Part]:
    """Return the parts of one dataset that was saved to disk, without any if there is none in this folder."""
    if not any((folder / name).is_file() for name in _SAVED):
        return []
    for path in folder.rglob("*.arrow"):
        require_file(path)
    with parsing(str(folder), "a saved dataset", "copy the whole folder, or save the dataset again"):
        loaded = _require_library().load_from_disk(str(folder))
    splits = loaded.items() if isinstance(loaded, dict) else [("", loaded)]
    return [
        Part(client, split, tuple(folder / split / Path(file["filename"]).name for file in data.cache_files), data)
        for split, data in splits
    ]


def _load_parquet(paths: Sequence[Path]) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pieces = []
    for path in paths:
        with pq.ParquetFile(path) as file:
            loaded = load_batches(iterate_batches(file, path), str(path), path.stat().st_size)
            pieces.append(pa.Table.from_batches(loaded, file.schema_arrow))
    return _require_library().Dataset(pa.concat_tables(pieces))


def _find_client_parts(root: Path) -> list[Part]:
    """Return the parts of a folder of saved datasets, one per client; raises InputError if some are none."""
    folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    by_folder = {folder: _open_saved(folder, folder.name) for folder in folders}
    others = [folder for folder, parts in by_folder.items() if not parts]
    if len(others) == len(folders):
        return []
    if others:
        raise InputError(
            f"{others[0]} is no saved dataset, but {next(path for path in folders if by_folder[path])} is",
            "each folder is a client: move others elsewhere",
        )
    return [part for parts in by_folder.values() for part in parts]


def _find_parquet_parts(root: Path) -> list[Part]:
    """Return the parts of a folder of Parquet files, such as ``data/train-00000-of-00001.parquet``."""
    groups: dict[tuple[str, str], list[Path]] = {}
    for path in sorted(root.rglob("*.parquet")):
        folders = path.relative_to(root).parts[:-1]
        if any(part.startswith(".") for part in folders):
            continue
        word = re.split(r"[-_.]", path.stem)[0]
        names = [name for name in (word, *reversed(folders)) if find_split(name)]
        client = "/".join(name for name in folders if not find_split(name) and name != "data")
        groups.setdefault((client, names[0] if names else ""), []).append(path)
    is_dealt = len({client for client, _ in groups}) > 1
    return [Part(client if is_dealt else "", split, tuple(paths)) for (client, split), paths in groups.items()]


def _assign_splits(root: Path, parts: Sequence[Part]) -> Folder:
    """Return the folder, in which splits with other names than train, validation and test are clients or left out."""
    if find_splits(part.client for part in parts) and not any(part.split for part in parts):
        parts = [replace(part, client="", split=part.client) for part in parts]
    named = [part for part in parts if part.split]
    known = [part for part in named if find_split(part.split)]
    if not known:
        if len(named) > 1 and not any(part.client for part in parts):  # a DatasetDict with one split per client
            return Folder(root, tuple(replace(part, client=part.split, split="") for part in parts))
        return Folder(root, tuple(replace(part, split="") for part in parts))
    without = [part for part in parts if not part.split]
    if without:
        raise InputError(
            f"{root}: {without[0].label(root)} is in no split, but {known[0].label(root)} is in '{known[0].split}'",
            "save all clients with splits, or all without",
        )
    left_out = sorted({part.split for part in named} - {part.split for part in known})
    return Folder(root, tuple(known), tuple(left_out))


class _Rows:
    """All rows of a folder as one table, with the interface of ``Table``."""

    def __init__(self, folder: Folder, advance: Callable[[int, str], None]) -> None:
        self.name = folder.root.name
        self.labels = [part.label(folder.root) for part in folder.parts]
        loaded: list[Any] = []
        for part, label in zip(folder.parts, self.labels, strict=True):
            loaded.append(part.open())
            if loaded[-1].features != loaded[0].features:
                names = sorted(
                    name
                    for name in {*loaded[0].features, *loaded[-1].features}
                    if loaded[0].features.get(name) != loaded[-1].features.get(name)
                )
                raise InputError(
                    f"{label} has other columns than {self.labels[0]}", f"they differ in: {list_columns(names)}"
                )
            advance(len(part.paths), "")
        self.sizes = [len(data) for data in loaded]
        self.first = np.cumsum([0, *self.sizes])
        if not self.first[-1]:
            raise InputError(f"{self.name} has no samples")
        library = _require_library()
        self.data = library.concatenate_datasets(loaded)
        self.types = dict(zip(self.data.column_names, self.data.features.arrow_schema.types, strict=True))
        self.images = [name for name, kind in self.data.features.items() if isinstance(kind, library.Image)]
        self.classes = {
            name: tuple(str(each).strip() for each in kind.names)
            for name, kind in self.data.features.items()
            if isinstance(kind, library.ClassLabel) and kind.names
        }
        self.columns = ["" if _is_nested(kind) else name for name, kind in self.types.items()]

    def repeat(self, words: Sequence[str]) -> NDArray[np.str_]:
        """Return one word per part as one per row."""
        return np.repeat(np.asarray(words, dtype=np.str_), self.sizes)

    def load(self, texts: Sequence[int], others: Sequence[int]) -> dict[int, Any]:
        """Return columns as pandas Series by position, those of classes as their names."""
        return {at: self._series(at, as_text=at in texts) for at in (*texts, *others)}

    def _series(self, at: int, *, as_text: bool) -> Any:
        import pandas as pd

        name = self.data.column_names[at]
        where, names = f"{self.name}: column '{name}'", self.classes.get(name, ())
        column = self.data.with_format("arrow", columns=[name])[:].column(0)
        if not names:
            return to_series(column, where, as_text=as_text)
        for each in names:
            require_short(where, each)
        numbers = column.to_pandas().to_numpy(np.float64, na_value=-1)
        numbers = np.where(np.isnan(numbers), -1, numbers).astype(np.int64)  # -1 marks samples without a label
        bad = np.flatnonzero((numbers < -1) | (numbers >= len(names)))
        if len(bad):
            raise InputError(
                f"{self.place(int(bad[0]))}, column '{name}': {numbers[bad[0]]} is no class (0 to {len(names) - 1})"
            )
        return pd.Series(np.asarray([*names, ""], dtype=object)[numbers])

    def place(self, row: int) -> str:
        """Return the part of a row and its number, counted from 1."""
        part = int(np.searchsorted(self.first, row, side="right")) - 1
        return f"{self.labels[part]}, row {row - self.first[part] + 1} (of 1 to {self.sizes[part]})"

    def cell(self, row: int, column: int) -> str:
        """Return the text of a cell."""
        return str(self.data[row][self.data.column_names[column]])

    def explain_missing(self, column: str) -> list[str]:
        """Return no option: the names of columns are part of the format."""
        return []


def _is_nested(kind: Any) -> bool:
    import pyarrow as pa

    is_binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return bool(is_binary or pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType))


def _find_number_type(kind: Any) -> Any:
    """Return the NumPy type of the numbers in lists, nested to any depth; None for other columns."""
    import pyarrow as pa

    kind, is_list = getattr(kind, "storage_type", kind), False
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind, is_list = kind.value_type, True
    return kind.to_pandas_dtype() if is_list and (pa.types.is_integer(kind) or pa.types.is_floating(kind)) else None


def recognize(path: Path) -> tuple[Path, list[str]] | None:
    """Return the first file of a dataset in a folder, and what to type."""
    for name in (*_SAVED, "dataset_info.json", "*.arrow", "*.parquet"):
        for depth in ("", "*/", "*/*/"):
            if path.is_dir() and (file := next(iter(sorted(path.glob(f"{depth}{name}"))), None)):
                return file, [f"pfl import hf:{path} -o DIR"]
    return None


def read(found: Folder, asked: UserData, advance: Callable[[int, str], None]) -> RawSamples:
    """Read all samples: a column of images, a column of arrays, or columns of numbers and words as in a table.

    The label is by default the only column of classes. Raises UsageError for a role that is missing or contradicts the
    folder, InputError for a missing column, and for a value that is not what its column promises.
    """
    rows, roles, features = _Rows(found, advance), asked.roles, asked.features
    are_dealt = any(part.client for part in found.parts)
    if are_dealt and roles.client is not None:
        raise UsageError(f"--client is for one table; in {found.root} each folder or split is a client", "leave it out")
    roles = replace(roles, client=ABSENT if are_dealt else roles.client, label=roles.label or _find_label_column(rows))
    column = _find_array_column(rows, features)
    if column is None:
        _refuse_decoding(asked.decoding, f"{found.root} has none")
        if asked.samples is not None:
            raise UsageError(f"--samples is for arrays; {found.root} has none", "leave it out")
        raw = tables.read(rows, roles, features, asked.categorical, asked.like, asked.dialect, asked.leave_out)
    else:
        if asked.categorical is not None:
            raise UsageError(f"--categorical is for columns of numbers or words, not for '{column}'", "leave it out")
        if asked.leave_out is not None:
            raise UsageError(f"--leave-out is for columns of numbers or words; '{column}' is read", "leave it out")
        raw = _read_column(rows, column, roles, asked.decoding, asked.samples)
    splits = [part.split for part in found.parts]
    remarks = [*raw.remarks, *([f"not taken over: split {name}" for name in found.left_out])]
    used = {column, roles.label, roles.client, *roles.metadata.values()}
    ignored = [
        name
        for name, flat in zip(rows.data.column_names, rows.columns, strict=True)
        if name not in used and (column is not None or not flat)
    ]
    if ignored:
        remarks.append(f"not taken over: {'column' if len(ignored) == 1 else 'columns'} {list_columns(ignored)}")
    if are_dealt:
        remarks.append(
            f"one client per folder or split: {listed(list(dict.fromkeys(part.client for part in found.parts)), 8)}"
        )
        raw = replace(raw, owner=rows.repeat([part.client for part in found.parts]))
    words = [str(find_split(split)) for split in splits]
    if {"train", "test"} <= set(words):
        raw = add_splits(raw, rows.repeat(words), roles, rows.name)
    elif any(splits) and roles.split is None:
        remarks.append(f"without splits: {rows.name} has only {', '.join(sorted(set(splits)))}")
    return replace(raw, classes=raw.classes or rows.classes.get(str(roles.label), ()), remarks=tuple(remarks))


def _find_label_column(rows: _Rows) -> str:
    """Return the only column of classes; raises UsageError if there is none, or more than one."""
    names = [name for name in rows.columns if name in rows.classes]
    if len(names) != 1:
        choice = names or [name for name in rows.columns if name]
        raise UsageError(
            f"--label is missing: {rows.name} has {counted(len(names), 'column')} of classes",
            f"--label COL, one of: {list_columns(choice)}",
        )
    return names[0]


def _find_array_column(rows: _Rows, features: str | Sequence[str] | None) -> str | None:
    """Return the column of images or arrays to learn from; None if samples are columns of numbers and words."""
    if features is not None:
        names = split_names(features)
        for name in names:
            if name in rows.types and _is_nested(rows.types[name]):
                if len(names) > 1:
                    raise UsageError(
                        f"--features: '{name}' contains images or arrays, and must be the only one",
                        f"--features {name}",
                    )
                return name
        return None
    are_arrays = [name for name, kind in rows.types.items() if _find_number_type(kind) is not None]
    for found, noun in ((rows.images, "images"), (are_arrays, "arrays")):
        if len(found) > 1:
            raise UsageError(
                f"{rows.name} has {len(found)} columns of {noun}: {list_columns(found)}", f"--features {found[0]}"
            )
        if found:
            return str(found[0])
    return None


def _read_column(rows: _Rows, name: str, roles: Roles, decoding: Decoding, samples: str | None) -> RawSamples:
    """Return the samples of a column of images or arrays."""
    positions = find_positions(rows, roles)
    loaded = rows.load(list(positions.values()), [])
    words = tables.read_roles(rows, positions, loaded)
    remark = ""
    if name in rows.images:
        x: NDArray[Any] = images.decode(
            _iterate_images(rows, name), len(rows.data), rows.name, decoding, lambda *step: None
        )
    elif _find_number_type(rows.types[name]) is not None:
        _refuse_decoding(decoding, f"'{name}' contains arrays")
        x = _stack_arrays(rows, name)
        if samples is None and x.ndim == 2 and x.dtype.kind in "iu" and x.max(initial=0) > 1:
            raise UsageError(
                f"{rows.name}: column '{name}' contains lists of {x.shape[1]} integers: are they tokens of text?",
                "--samples numbers if they are not",
                "pfl does not import tokens: compute embeddings of the text first (pfl import --embeddings)",
            )
        x, remark = arrays.check_samples(f"{rows.name}: column '{name}'", x, None, samples)
    else:
        raise InputError(
            f"{rows.name}: column '{name}' contains {rows.types[name]}, neither images nor arrays of numbers"
        )
    return RawSamples(
        x=x,
        label=words.pop("label"),
        owner=words.pop("client", None),
        place=lambda row, role, at: locate_cell(
            rows, row, rows.columns[positions[role]] if role in positions else name
        ),
        remarks=(remark,) if remark else (),
        metadata=words,
    )


def _refuse_decoding(decoding: Decoding, what: str) -> None:
    """Raise UsageError if an option for images is given; ``what`` says why it has no effect."""
    for name in decoding.options():
        raise UsageError(f"--{name} is for images; {what}", "leave it out")


def _iterate_images(rows: _Rows, name: str) -> Iterator[tuple[str, bytes]]:
    """Yield the place and content of each image; raises InputError for one that is missing or in another file."""
    stored = rows.data.select_columns([name]).cast_column(name, _require_library().Image(decode=False))
    for row, sample in enumerate(stored):
        place = f"{rows.place(row)}, column '{name}'"
        if sample[name] is None or sample[name]["bytes"] is None:
            raise InputError(f"{place}: no image", "save the dataset with its images")
        yield place, sample[name]["bytes"]


def _stack_arrays(rows: _Rows, name: str) -> NDArray[Any]:
    """Return a column of arrays as one array; raises InputError if their shapes differ."""
    kind = _find_number_type(rows.types[name])
    stored = rows.data.with_format("numpy", columns=[name], dtype=kind)
    pieces: list[NDArray[Any]] = []
    for row in range(len(stored)):
        array = np.asarray(stored[row][name])
        if array.dtype == object or (pieces and array.shape != pieces[0].shape):
            raise InputError(
                f"{rows.place(row)}, column '{name}': its shape differs from that of row 1",
                "store arrays of equal shape",
            )
        pieces.append(array)
    return np.stack(pieces)
