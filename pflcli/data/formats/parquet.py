"""Parquet files, read by pyarrow, an optional dependency: ``pip install 'pflcli[parquet]'``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pflcli.core.errors import InputError, UsageError
from pflcli.core.foreign import require_room

_ROWS_PER_BATCH = 8192
_BATCH_BYTES = 256 * 10**6
"""Maximum bytes of a batch, if every row has the largest value that its column can contain."""
_MIN_VALUE_BYTES = 8
"""Bytes of a value in NumPy and pandas: a number in 64 bits, or a reference to a word."""


def require_pyarrow(form: str) -> None:
    """Raise UsageError if pyarrow is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise UsageError(
            f"reading {form} needs pyarrow, which is not installed", "pip install 'pflcli[parquet]'"
        ) from None


def iterate_batches(file: Any, path: Path, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Yield the record batches of an open Parquet ``file``, by default with all columns.

    Raises InputError before a batch is read that could take too much memory: a file stores a repeated value once.
    """
    metadata = file.metadata
    chunks = [
        metadata.row_group(group).column(column)
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
    ]
    chosen = [chunk for chunk in chunks if columns is None or chunk.path_in_schema.partition(".")[0] in columns]
    width = len({chunk.path_in_schema for chunk in chosen})
    require_room(
        f"{path} ({metadata.num_rows} rows)", metadata.num_rows * width * _MIN_VALUE_BYTES, path.stat().st_size
    )
    largest = max((chunk.total_uncompressed_size for chunk in chosen), default=1)
    rows = max(1, min(_ROWS_PER_BATCH, _BATCH_BYTES // max(1, largest)))
    yield from file.iter_batches(columns=columns, batch_size=rows)


def load_batches(batches: Iterable[Any], name: str, file_bytes: int) -> list[Any]:
    """Return record batches, of which each is checked before it is used: the offsets in a file may point anywhere.

    Raises InputError, with ``name``, as soon as they take more memory than the size of the file allows.
    """
    kept, loaded_bytes = [], 0
    for batch in batches:
        batch.validate(full=True)
        loaded_bytes += sum(map(count_bytes, batch.columns))
        require_room(name, loaded_bytes, file_bytes)
        kept.append(batch)
    return kept


def count_bytes(array: Any) -> int:
    """Return the bytes of an Arrow array when each row has its own copy of its value, as in NumPy and pandas.

    Arrow stores a value of a dictionary, a run or a view once, and missing values of type null not at all. The array
    must be valid. Raises InputError for a type that pfl does not know.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kind, count, types = array.type, len(array), pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return count_bytes(array.storage)
    if types.is_dictionary(kind):
        return count * _count_largest(array.dictionary)
    if _is_of(kind, "run_end_encoded"):
        return count * _count_largest(array.values)
    if _is_of(kind, "list_view", "large_list_view"):
        return count * _MIN_VALUE_BYTES + int(pc.sum(array.sizes).as_py() or 0) * _count_largest(array.values)
    if types.is_union(kind):
        return count * sum(_count_largest(array.field(at)) for at in range(kind.num_fields))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        first, last = (array.offsets[at].as_py() for at in (0, -1))
        return count * _MIN_VALUE_BYTES + count_bytes(array.values.slice(first, last - first))
    if types.is_fixed_size_list(kind):
        inner = array.values.slice(array.offset * kind.list_size, count * kind.list_size)
        return count * _MIN_VALUE_BYTES + count_bytes(inner)
    if types.is_struct(kind):
        return count * _MIN_VALUE_BYTES + sum(count_bytes(array.field(at)) for at in range(kind.num_fields))
    if _is_text(kind):
        return count * _MIN_VALUE_BYTES + int(_measure_texts(array).sum())
    if types.is_null(kind):
        return count * _MIN_VALUE_BYTES
    if not types.is_primitive(kind) and not types.is_decimal(kind) and not types.is_fixed_size_binary(kind):
        raise InputError(f"values of type {kind} are not read", "save them as numbers, text, lists or images")
    return int(count * max(_MIN_VALUE_BYTES, kind.bit_width // 8))


def _count_largest(array: Any) -> int:
    """Return at least the bytes of the largest value of an Arrow array."""
    if _is_text(array.type):
        return _MIN_VALUE_BYTES + int(_measure_texts(array).max(initial=0))
    total = count_bytes(array)
    return total // max(1, len(array)) if _is_flat(array.type) else max(total, _MIN_VALUE_BYTES)


def _measure_texts(array: Any) -> NDArray[np.int64]:
    """Return the bytes of each text (n,)."""
    import pyarrow.compute as pc

    if _is_of(array.type, "string_view", "binary_view"):  # 16 bytes for each, of which the first four are its length
        views = np.frombuffer(array.buffers()[1] or b"", "<i4").reshape(-1, 4)
        return views[array.offset : array.offset + len(array), 0].astype(np.int64)
    return np.asarray(pc.fill_null(pc.binary_length(array), 0), dtype=np.int64)


def _is_flat(kind: Any) -> bool:
    """Return whether all values of an Arrow type have the same size."""
    import pyarrow as pa

    return bool(pa.types.is_primitive(kind) or pa.types.is_null(kind) or pa.types.is_decimal(kind))


def _is_text(kind: Any) -> bool:
    """Return whether values are text or bytes of any length."""
    import pyarrow as pa

    names = ("string", "large_string", "binary", "large_binary", "string_view", "binary_view")
    return _is_of(kind, *names) and not pa.types.is_fixed_size_binary(kind)


def _is_of(kind: Any, *names: str) -> bool:
    """Return whether an Arrow type is one of the named ones; older versions of pyarrow lack some of them."""
    import pyarrow as pa

    tests = [getattr(pa.types, f"is_{name}", None) for name in names]
    return any(test(kind) for test in tests if test is not None)


def to_series(column: Any, name: str, *, as_text: bool) -> Any:
    """Return an Arrow column as a pandas Series; raises InputError, with its ``name``, if it cannot be text."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if as_text and not pa.types.is_floating(column.type):
        # Integers with missing values would become floats in pandas, which are too short for large ids.
        try:
            column = column.cast(pa.string())
        except pa.ArrowException:
            raise InputError(f"{name} has values of type {column.type}, which are not names") from None
    elif pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    return column.to_pandas()


class Parquet:
    """A Parquet file; rows are counted from 1 in messages."""

    def __init__(self, path: Path) -> None:
        """Open ``path``; raises UsageError without pyarrow, its own errors for a damaged file."""
        require_pyarrow("Parquet")
        import pyarrow.parquet as pq

        self.path = path
        self.name = path.name
        self._file: Any = pq.ParquetFile(path)
        # The columns in which pandas stores row numbers have no name.
        names = self._file.schema_arrow.names
        self.columns = ["" if name.startswith("__index_level_") else name for name in names]

    def load(self, texts: Sequence[int], others: Sequence[int]) -> dict[int, Any]:
        """Return columns as pandas Series by position; see ``table.Table``. Raises InputError for too many rows."""
        rows = self._file.metadata.num_rows
        require_room(f"{self.name} ({rows} rows)", rows * (len(texts) + len(others)) * 8, self.path.stat().st_size)
        return {
            at: to_series(self._column(at), f"{self.name}: column '{self.columns[at]}'", as_text=at in texts)
            for at in (*texts, *others)
        }

    def _column(self, at: int) -> Any:
        import pyarrow as pa

        name = self.columns[at]
        batches = iterate_batches(self._file, self.path, [name])
        loaded = load_batches(batches, f"{self.name}: column '{name}'", self.path.stat().st_size)
        return pa.chunked_array([batch.column(0) for batch in loaded], self._file.schema_arrow.field(name).type)

    def place(self, row: int) -> str:
        """Return the number of a row, counted from 1."""
        return f"{self.name}, row {row + 1} (of 1 to {self._file.metadata.num_rows})"

    def cell(self, row: int, column: int) -> str:
        """Return the text of a cell, empty if it has no value."""
        value = self._column(column)[row].as_py()
        return "" if str(value) in ("None", "nan", "NaT", "<NA>") else str(value)

    def explain_missing(self, column: str) -> list[str]:
        """Return no option: the names of columns are part of the format."""
        return []
