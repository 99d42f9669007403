"""Parquet files, read by pyarrow, an optional dependency: ``pip install 'pflcli[parquet]'``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pflcli.errors import InputError, UsageError
from pflcli.foreign import require_room

_ROWS_PER_BATCH = 8192


def require_pyarrow(form: str) -> None:
    """Raise UsageError if pyarrow is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise UsageError(
            f"reading {form} needs pyarrow, which is not installed", "pip install 'pflcli[parquet]'"
        ) from None


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

        chunks: list[Any] = []
        loaded_bytes = 0
        for batch in self._file.iter_batches(columns=[self.columns[at]], batch_size=_ROWS_PER_BATCH):
            chunks += batch.columns[:1]
            loaded_bytes += batch.nbytes
            # One stored value may be repeated in every row.
            require_room(f"{self.name}: column '{self.columns[at]}'", loaded_bytes, self.path.stat().st_size)
        return pa.chunked_array(chunks, self._file.schema_arrow.field(self.columns[at]).type)

    def place(self, row: int) -> str:
        """Return the number of a row, counted from 1."""
        return f"{self.name}, row {row + 1} (of 1 to {self._file.metadata.num_rows})"

    def cell(self, row: int, column: int) -> str:
        """Return the text of a cell."""
        return str(self._column(column)[row].as_py())

    def explain_missing(self, column: str) -> list[str]:
        """Return no option: the names of columns are part of the format."""
        return []
