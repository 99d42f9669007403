"""Hugging Face datasets: those that ``save_to_disk`` wrote, and folders of Parquet files; read by pyarrow.

``Dataset.save_to_disk`` writes ``state.json``, ``dataset_info.json`` and Arrow files (IPC streams). A ``DatasetDict``
is a folder with ``dataset_dict.json`` and one such folder per split. A folder of folders has one client per folder, as
partitions of Flower Datasets are saved. The schema of a file contains the features: images, and the names of classes.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.artifacts.codebook import NO_DIALECT, Dialect
from pflcli.data.formats import (
    ABSENT,
    Like,
    RawSamples,
    Roles,
    arrays,
    hash_files,
    images,
    option,
    read_json_object,
    require_folder,
    require_utf8_name,
    tables,
)
from pflcli.data.formats.given_splits import find_split
from pflcli.data.formats.images import Decoding
from pflcli.data.formats.parquet import count_bytes, iterate_batches, require_pyarrow, to_series
from pflcli.data.formats.tables import list_columns
from pflcli.errors import InputError, UsageError
from pflcli.foreign import parsing, require_file, require_room, require_short
from pflcli.wording import counted, listed

_DICT_FILE, _STATE_FILE = "dataset_dict.json", "state.json"


@dataclass(frozen=True)
class Part:
    """The files of one split of one client; ``client`` and ``split`` are empty if the folder has none."""

    client: str
    split: str
    paths: tuple[Path, ...]

    def label(self, root: Path) -> str:
        """Return its name in messages: its path below ``root``."""
        is_alone = len(self.paths) == 1 and self.paths[0].suffix == ".parquet"
        path = self.paths[0] if is_alone else self.paths[0].parent
        return path.relative_to(root).as_posix() if path != root else root.name


@dataclass(frozen=True)
class Folder:
    """The parts of a folder, and the names of splits that are left out."""

    root: Path
    parts: tuple[Part, ...]
    left_out: tuple[str, ...] = ()

    def sha256(self) -> str:
        """Return a hash of all files and their paths."""
        return hash_files(self.root, (path for part in self.parts for path in part.paths))


def find(root: Path) -> Folder:
    """Find the files of a dataset; raises InputError if there are none, or if one is missing."""
    require_folder(root)
    parts = _find_saved_parts(root, "") or _find_client_parts(root) or _find_parquet_parts(root)
    if not parts:
        raise InputError(
            f"{root} contains no Hugging Face dataset",
            "hf:FOLDER, where FOLDER was written by dataset.save_to_disk(FOLDER), or contains .parquet files",
        )
    for path in (path for part in parts for path in part.paths):
        require_utf8_name(path)
        require_file(path)
    return _assign_splits(root, parts)


def _find_saved_parts(folder: Path, client: str) -> list[Part]:
    """Return the parts of one dataset that was saved to disk, without any if there is none in this folder."""
    if (folder / _STATE_FILE).is_file():
        return [Part(client, "", _list_arrow_files(folder))]
    if not (folder / _DICT_FILE).is_file():
        return []
    splits = read_json_object(folder / _DICT_FILE).get("splits")
    if not isinstance(splits, list) or not splits or not all(_is_file_name(split) for split in splits):
        raise InputError(f"{folder / _DICT_FILE} has no list of splits")
    return [Part(client, split, _list_arrow_files(folder / split)) for split in splits]


def _list_arrow_files(folder: Path) -> tuple[Path, ...]:
    if not (folder / _STATE_FILE).is_file():
        raise InputError(f"{folder / _STATE_FILE} does not exist", "copy the whole folder, or save the dataset again")
    entries = read_json_object(folder / _STATE_FILE).get("_data_files")
    names = [entry.get("filename") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    if not names or not all(_is_file_name(name) for name in names):
        raise InputError(f"{folder / _STATE_FILE} has no list of data files")
    return tuple(folder / str(name) for name in names)


def _is_file_name(name: Any) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and Path(name).name == name


def _find_client_parts(root: Path) -> list[Part]:
    """Return the parts of a folder of saved datasets, one per client; raises InputError if some are none."""
    folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    by_folder = {folder: _find_saved_parts(folder, folder.name) for folder in folders}
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
    """All rows of a folder as one Arrow table, with the interface of ``table.Table``."""

    def __init__(self, folder: Folder, advance: Callable[[int, str], None]) -> None:
        import pyarrow as pa

        self.name = folder.root.name
        self.labels = [part.label(folder.root) for part in folder.parts]
        loaded: list[Any] = []
        for part, label in zip(folder.parts, self.labels, strict=True):
            for path in part.paths:
                with parsing(str(path), "Arrow" if path.suffix != ".parquet" else "Parquet", "is it complete?"):
                    table = _load_table(path)
                if loaded and not table.schema.equals(loaded[0].schema):
                    raise InputError(
                        f"{label} has other columns than {self.labels[0]}", *_list_differences(table, loaded[0])
                    )
                loaded.append(table)
                advance(1, "")
        counts = iter([len(table) for table in loaded])
        self.sizes = [sum(next(counts) for _ in part.paths) for part in folder.parts]
        self.first = np.cumsum([0, *self.sizes])
        self.table = pa.concat_tables(loaded)
        if not len(self.table):
            raise InputError(f"{self.name} has no samples")
        self.features = _read_feature_types(loaded[0].schema)
        scalar = [not _is_nested(field.type) for field in self.table.schema]
        self.columns = [name if flat else "" for name, flat in zip(self.table.column_names, scalar, strict=True)]

    def repeat(self, words: Sequence[str]) -> NDArray[np.str_]:
        """Return one word per part as one per row."""
        return np.repeat(np.asarray(words, dtype=np.str_), self.sizes)

    def class_names(self, name: str) -> tuple[str, ...]:
        """Return the names of the classes of a column, empty if it has none."""
        feature = self.features.get(name)
        names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
        return tuple(str(each).strip() for each in names) if isinstance(names, list) else ()

    def load(self, texts: Sequence[int], others: Sequence[int]) -> dict[int, Any]:
        """Return columns as pandas Series by position, those of classes as their names."""
        return {at: self._series(at, as_text=at in texts) for at in (*texts, *others)}

    def _series(self, at: int, *, as_text: bool) -> Any:
        import pandas as pd

        name = self.table.column_names[at]
        where, names = f"{self.name}: column '{name}'", self.class_names(name)
        if not names:
            return to_series(self.table.column(at), where, as_text=as_text)
        for each in names:
            require_short(where, each)
            if names.count(each) > 1:
                raise InputError(f"{where}: two classes are called '{each}'")
        numbers = self.table.column(at).to_pandas().to_numpy(np.float64, na_value=-1)
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
        return str(self.table.column(column)[row].as_py())

    def explain_missing(self, column: str) -> list[str]:
        """Return no option: the names of columns are part of the format."""
        return []


def _load_table(path: Path) -> Any:
    """Return the Arrow table in a file; raises InputError if it takes more memory than its size allows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    batches, loaded = [], 0

    def read(reader: Iterator[Any]) -> None:
        nonlocal loaded
        for batch in reader:
            batch.validate(full=True)  # before anything else reads it: offsets may point anywhere
            batches.append(batch)
            loaded += sum(map(count_bytes, batch.columns))
            require_room(str(path), loaded, path.stat().st_size)

    if path.suffix == ".parquet":
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            read(iterate_batches(file, path))
    else:
        _require_uncompressed(path)
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
            schema = reader.schema
            read(reader)
    table = pa.Table.from_batches(batches, schema)
    # With `datasets` imported, arrays have its extension types.
    for at, field in enumerate(table.schema):
        if isinstance(field.type, pa.BaseExtensionType):
            column = pa.chunked_array([chunk.storage for chunk in table.column(at).chunks], field.type.storage_type)
            table = table.set_column(at, pa.field(field.name, field.type.storage_type), column)
    return table


def _require_uncompressed(path: Path) -> None:
    """Raise InputError for an Arrow stream with compressed batches, whose size is known only after unpacking.

    The metadata of each message is a FlatBuffer (https://flatbuffers.dev/internals/), of the schema in Arrow's
    ``format/Message.fbs``. ``datasets`` writes uncompressed streams.
    """
    import pyarrow as pa

    def find_field(table: int, number: int) -> int:
        """Return the position of a table's field in ``content``, 0 if it is absent."""
        vtable = table - struct.unpack_from("<i", content, table)[0]
        size, at = struct.unpack_from("<H", content, vtable)[0], 4 + 2 * number
        offset = struct.unpack_from("<H", content, vtable + at)[0] if at < size else 0
        return table + offset if offset else 0

    def follow(at: int) -> int:
        return at + int(struct.unpack_from("<I", content, at)[0])

    with pa.memory_map(str(path)) as source:
        for message in pa.ipc.MessageReader.open_stream(source):
            content = message.metadata.to_pybytes()
            header = follow(find_field(follow(0), 2))
            if message.type == "dictionary":
                header = follow(find_field(header, 1))  # the batch inside
            if message.type in ("dictionary", "record batch") and find_field(header, 3):
                raise InputError(f"{path} is compressed", "save the dataset with save_to_disk, which does not compress")


def _list_differences(table: Any, first: Any) -> list[str]:
    """Return a hint with the columns that differ in name or type."""
    names = [
        name
        for name in dict.fromkeys([*first.column_names, *table.column_names])
        if name not in table.column_names
        or name not in first.column_names
        or table.schema.field(name).type != first.schema.field(name).type
    ]
    return [f"they differ in: {list_columns(names)}"] if names else []


def _read_feature_types(schema: Any) -> dict[str, Any]:
    """Return the features of ``datasets`` in the metadata of a schema, empty if there are none."""
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}


def _is_nested(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_image(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_struct(kind)) and {kind.field(at).name for at in range(kind.num_fields)} == {
        "bytes",
        "path",
    }


def _is_array(kind: Any) -> bool:
    """Return whether a column contains lists of numbers, nested to any depth."""
    import pyarrow as pa

    is_list = False
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind, is_list = kind.value_type, True
    return is_list and bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def read(
    folder: Folder,
    roles: Roles,
    features: str | Sequence[str] | None,
    categorical: str | Sequence[str] | None,
    like: Like | None,
    decoding: Decoding,
    samples: str | None,
    advance: Callable[[int, str], None],
    dialect: Dialect | None = None,
    leave_out: str | Sequence[str] | None = None,
) -> RawSamples:
    """Read all samples: a column of images, a column of arrays, or columns of numbers and words as in a table.

    The label is by default the only column of classes. Raises UsageError for a role that is missing or contradicts the
    folder, InputError for a missing column, and for a value that is not what its column promises.
    """
    require_pyarrow("a Hugging Face dataset")
    rows = _Rows(folder, advance)
    are_dealt = any(part.client for part in folder.parts)
    if are_dealt and roles.client is not None:
        raise UsageError(
            f"--client is for one table; in {folder.root} each folder or split is a client", "leave it out"
        )
    roles = replace(roles, client=ABSENT if are_dealt else roles.client, label=roles.label or _find_label_column(rows))
    column = _find_array_column(rows, features)
    if column is None:
        _refuse_decoding(decoding, f"{folder.root} has none")
        if samples is not None:
            raise UsageError(f"--samples is for arrays; {folder.root} has none", "leave it out")
        raw = tables.read(rows, roles, features, categorical, like, dialect, leave_out)
    else:
        if categorical is not None:
            raise UsageError(f"--categorical is for columns of numbers or words, not for '{column}'", "leave it out")
        if leave_out is not None:
            raise UsageError(f"--leave-out is for columns of numbers or words; '{column}' is read", "leave it out")
        raw = replace(_read_column(rows, column, roles, decoding, samples), dialect=dialect or NO_DIALECT)
    splits = [part.split for part in folder.parts]
    remarks = [*raw.remarks, *([f"not taken over: split {name}" for name in folder.left_out])]
    used = {column, roles.label, roles.client, *roles.metadata.values()}
    ignored = [
        name
        for name, flat in zip(rows.table.column_names, rows.columns, strict=True)
        if name not in used and (column is not None or not flat)
    ]
    if ignored:
        remarks.append(f"not taken over: {'column' if len(ignored) == 1 else 'columns'} {list_columns(ignored)}")
    if are_dealt:
        remarks.append(
            f"one client per folder or split: {listed(list(dict.fromkeys(part.client for part in folder.parts)), 8)}"
        )
        raw = replace(raw, owner=rows.repeat([part.client for part in folder.parts]))
    if any(splits) and roles.split is None:
        raw = replace(raw, metadata={**raw.metadata, **_repeat_splits(rows, splits, roles, remarks)})
    return replace(raw, classes=raw.classes or rows.class_names(str(roles.label)), remarks=tuple(remarks))


def _find_label_column(rows: _Rows) -> str:
    """Return the only column of classes; raises UsageError if there is none, or more than one."""
    names = [name for name in rows.columns if name and rows.class_names(name)]
    if len(names) != 1:
        choice = names or [name for name in rows.columns if name]
        raise UsageError(
            f"--label is missing: {rows.name} has {counted(len(names), 'column')} of classes",
            f"--label COL, one of: {list_columns(choice)}",
        )
    return names[0]


def _find_array_column(rows: _Rows, features: str | Sequence[str] | None) -> str | None:
    """Return the column of images or arrays to learn from; None if samples are columns of numbers and words."""
    schema = rows.table.schema
    if features is not None:
        names = tables.split_names(features)
        for name in names:
            if name in rows.table.column_names and _is_nested(schema.field(name).type):
                if len(names) > 1:
                    raise UsageError(
                        f"--features: '{name}' contains images or arrays, and must be the only one",
                        f"--features {name}",
                    )
                return name
        return None
    for test, noun in ((_is_image, "images"), (_is_array, "arrays")):
        found = [field.name for field in schema if test(field.type)]
        if len(found) > 1:
            raise UsageError(
                f"{rows.name} has {len(found)} columns of {noun}: {list_columns(found)}", f"--features {found[0]}"
            )
        if found:
            return str(found[0])
    return None


def _read_column(rows: _Rows, name: str, roles: Roles, decoding: Decoding, samples: str | None) -> RawSamples:
    """Return the samples of a column of images or arrays."""
    positions = tables.find_positions(rows, roles)
    loaded = rows.load(list(positions.values()), [])
    words = tables.read_roles(rows, positions, loaded)
    column = rows.table.column(name)
    remark = ""
    if _is_image(column.type):
        x: NDArray[Any] = images.decode(
            _iterate_images(rows, name), len(column), rows.name, decoding, lambda *step: None
        )
    elif _is_array(column.type):
        _refuse_decoding(decoding, f"'{name}' contains arrays")
        x = _stack_lists(rows, name)
        if samples is None and x.ndim == 2 and x.dtype.kind in "iu" and x.max(initial=0) > 1:
            raise UsageError(
                f"{rows.name}: column '{name}' contains lists of {x.shape[1]} integers: are they tokens of text?",
                "--samples numbers if they are not",
                "pfl does not import tokens: compute embeddings of the text first (pfl import --embeddings)",
            )
        x, remark = arrays.check_samples(f"{rows.name}: column '{name}'", x, None, samples)
    else:
        raise InputError(f"{rows.name}: column '{name}' contains {column.type}, neither images nor arrays of numbers")
    return RawSamples(
        x=x,
        label=words.pop("label"),
        owner=words.pop("client", None),
        place=lambda row, role, at: tables.locate_cell(
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
    for row, value in enumerate(value for chunk in rows.table.column(name).chunks for value in chunk):
        place = f"{rows.place(row)}, column '{name}'"
        content = None if not value.is_valid else value["bytes"].as_py()
        if content is None:
            path = value["path"].as_py() if value.is_valid else None
            problem = f"the image is in another file, {Path(path).name}" if path else "no image"
            raise InputError(f"{place}: {problem}", "save the dataset with its images")
        yield place, content


def _stack_lists(rows: _Rows, name: str) -> NDArray[Any]:
    """Return a column of lists of equal length, nested to any depth, as one array; raises InputError for others."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values, shape = rows.table.column(name).combine_chunks(), [len(rows.table)]
    where = f"{rows.name}: column '{name}'"
    while pa.types.is_nested(values.type):
        lengths = pc.list_value_length(values)
        different = pc.min_max(lengths).as_py()
        if lengths.null_count or different["min"] != different["max"]:
            odd = pc.index(pc.fill_null(pc.not_equal(lengths, lengths[0]), True), True).as_py()
            row = max(odd, 0) * shape[0] // max(len(values), 1)
            raise InputError(
                f"{rows.place(row)}, column '{name}': its length differs from that of row 1",
                "store arrays of equal shape",
            )
        shape.append(different["min"] or 0)
        values = values.flatten()
    if values.null_count:
        raise InputError(f"{where} has {counted(values.null_count, 'missing value')}", "fill them in")
    require_room(where, values.nbytes)
    array: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return array.reshape(shape)


def _repeat_splits(rows: _Rows, splits: Sequence[str], roles: Roles, remarks: list[str]) -> dict[str, NDArray[np.str_]]:
    """Return the split of each sample, without any if there are not both training and test samples."""
    if roles.metadata:
        name = option(next(iter(roles.metadata)))
        raise UsageError(f"{name} contradicts the splits of {rows.name}: both define the splits", "--split-column none")
    words = [str(find_split(split)) for split in splits]
    if not {"train", "test"} <= set(words):
        remarks.append(f"without splits: {rows.name} has only {', '.join(sorted(set(splits)))}")
        return {}
    return {"split": rows.repeat(words)}
