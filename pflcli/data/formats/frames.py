"""Tables that are read as a whole: Excel, Stata, SPSS, Feather and JSON, by pandas and the packages that it needs."""

from __future__ import annotations

import itertools
import json
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pflcli.artifacts.codebook import Dialect
from pflcli.core.errors import InputError, UsageError, closest
from pflcli.core.foreign import read_json_text, require_room
from pflcli.data.formats.delimited import COMPRESSED, read_text
from pflcli.data.formats.parquet import require_pyarrow

EXTRAS = {"excel": ("openpyxl", "excel"), "spss": ("pyreadstat", "spss")}
"""The package that a form needs, and the extra of pfl that installs it."""
FORM_OF_SUFFIX = {
    ".xlsx": "excel", ".xlsm": "excel", ".dta": "stata", ".sav": "spss", ".zsav": "spss", ".por": "spss",
    ".feather": "feather", ".jsonl": "json", ".ndjson": "json", ".json": "json",
}  # fmt: skip


@dataclass(frozen=True)
class Frame:
    """A table in memory: the ``series`` of its ``columns`` by position, and ``number``, the place of a row."""

    name: str
    columns: list[str]
    series: list[Any]
    number: Callable[[int], str]
    rows: Sequence[int] = ()
    """the rows of a sheet, from 0, which may have names of columns"""

    def load(self, texts: Sequence[int], others: Sequence[int]) -> dict[int, Any]:
        """Return columns as pandas Series by position; see ``columns.Table``."""
        return {at: self.series[at] for at in (*texts, *others)}

    def place(self, row: int) -> str:
        """Return the place of a row in the file."""
        return f"{self.name}, {self.number(row)}"

    def cell(self, row: int, column: int) -> str:
        """Return the text of a cell, empty if it has no value."""
        value = self.series[column].iloc[row]
        return "" if str(value) in ("None", "nan", "NaT", "<NA>") else str(value)

    def explain_missing(self, column: str) -> list[str]:
        """Return the option that finds a missing column in a later row of a sheet, below a title."""
        for row, at in enumerate(self.rows[:50]):
            if column in (str(each.iloc[row]).strip() for each in self.series):
                return [f"row {at + 1} has it: --skip-rows {at}"]
        return []


def read(path: Path, form: str, dialect: Dialect) -> Frame:
    """Read the table in ``path``; raises UsageError if a package is missing, its own errors for a damaged file."""
    if form in EXTRAS:
        package, extra = EXTRAS[form]
        try:
            __import__(package)
        except ImportError:
            raise UsageError(
                f"reading {path.name} needs {package}, which is not installed", f"pip install 'pflcli[{extra}]'"
            ) from None
    match form:
        case "excel":
            return _read_sheet(path, dialect)
        case "json":
            return _read_json(path)
        case "feather":
            return _read_feather(path)
    import pandas as pd
    from pandas.io.stata import StataReader

    if form == "stata":
        with StataReader(path) as stored:
            _require_different_labels(path, stored.value_labels())
        frame: Any = pd.read_stata(path, preserve_dtypes=False)
    else:
        frame = pd.read_spss(path)
        _require_different_labels(path, frame.attrs.get("variable_value_labels", {}))
    return _number_rows(path, [str(name) for name in frame.columns], [frame[name] for name in frame.columns])


def _require_different_labels(path: Path, labels: Mapping[str, Mapping[Any, str]]) -> None:
    """Raise InputError if two codes have the same label: they would become one word."""
    for name, words in labels.items():
        for word, count in Counter(words.values()).items():
            if count > 1:
                codes = [f"{code:g}" if isinstance(code, float) else str(code) for code in words if words[code] == word]
                raise InputError(
                    f"{path.name}: {' and '.join(codes[:3])} of '{name}' have the same label, '{word}'",
                    "give each code its own label, or save the codes without labels",
                )


def _number_rows(path: Path, columns: list[str], series: Sequence[Any]) -> Frame:
    """Return a table whose rows are counted from 1; categories become their names."""
    count = len(series[0]) if series else 0
    if not count:
        raise InputError(f"{path.name} has no samples")
    plain = [each.astype(object) if str(each.dtype) in ("category", "str", "string") else each for each in series]
    return Frame(path.name, columns, plain, lambda row: f"row {row + 1} (of 1 to {count})")


def _read_sheet(path: Path, dialect: Dialect) -> Frame:
    """Read a sheet of an Excel file: ``--sheet``, or the only one; the first row that is not empty has the names."""
    import pandas as pd

    with zipfile.ZipFile(path) as archive:
        require_room(path.name, sum(info.file_size for info in archive.infolist()), path.stat().st_size)
    with pd.ExcelFile(path) as book:
        names = [str(name) for name in book.sheet_names]
        if dialect.sheet is not None and dialect.sheet not in names:
            raise InputError(f"{path.name} has no sheet '{dialect.sheet}'", closest(dialect.sheet, names))
        cells = {
            name: pd.read_excel(book, sheet_name=name, header=None, dtype=object, keep_default_na=False, na_values=[""])
            for name in names
            if dialect.sheet in (None, name)
        }
    filled = {name: each for name, each in cells.items() if each.notna().to_numpy().any()}
    if len(filled) != 1:
        options = [f"--sheet '{name}'" for name in filled][:3]
        raise InputError(f"{path.name} has {len(filled)} sheets with cells: {', '.join(filled)}", *options)
    sheet, frame = next(iter(filled.items()))
    rows = np.flatnonzero(frame.notna().any(axis=1).to_numpy())
    rows = rows[rows >= (dialect.skip_rows or 0)]
    rows = rows[: len(rows) - (dialect.skip_footer or 0)]
    columns = [str(at) for at in range(frame.shape[1])]
    has_header = not dialect.names if dialect.header is None else dialect.header
    if has_header and len(rows):
        first = frame.iloc[int(rows[0])]
        columns, rows = ["" if pd.isna(cell) else str(cell).strip() for cell in first], rows[1:]
        _require_values(path, sheet, frame.iloc[rows], columns)
    if dialect.names:
        if len(dialect.names) != frame.shape[1]:
            raise UsageError(f"--names has {len(dialect.names)} names; {path.name} has {frame.shape[1]} columns")
        columns = list(dialect.names)
    if not len(rows):
        raise InputError(f"{path.name} has no samples")
    series = [frame[at].iloc[rows].reset_index(drop=True) for at in frame.columns]
    return Frame(path.name, columns, series, lambda row: f"sheet '{sheet}', row {rows[row] + 1}", rows.tolist())


def _require_values(path: Path, sheet: str, frame: Any, columns: Sequence[str]) -> None:
    """Raise InputError for a column of formulas without values, which Excel stores when it saves the file."""
    empty = [at for at, name in enumerate(columns) if name and len(frame) and frame.iloc[:, at].isna().all()]
    if not empty:
        return
    import openpyxl

    row = int(frame.index[0]) + 1
    book = openpyxl.load_workbook(path, read_only=True)
    cells = next(book[sheet].iter_rows(row, row))
    book.close()
    lost = [columns[at] for at in empty if at < len(cells) and str(cells[at].value).startswith("=")]
    if lost:
        raise InputError(
            f"{path.name}, sheet '{sheet}', row {row}, column '{lost[0]}': its formula has no stored value",
            "open the file in Excel or LibreOffice and save it, or store values instead of formulas",
        )


def _read_json(path: Path) -> Frame:
    """Read one JSON object per line, or a list of objects; raises InputError, with the line, for anything else.

    The json module reads it, because pandas names no line, and rounds integers above 2**53 beside missing values.
    """
    import pandas as pd

    text = read_text(path) if path.suffix.lower() in COMPRESSED else read_json_text(path)
    records: list[tuple[str, Any]] = []
    if text.lstrip().startswith("["):
        records = [(f"record {at}", record) for at, record in enumerate(json.loads(text), 1)]
    else:
        for number, line in enumerate(text.split("\n"), 1):  # a string may contain other line ends of Unicode
            if not line.strip():
                continue
            try:
                records.append((f"line {number}", json.loads(line)))
            except ValueError as error:
                raise InputError(f"{path.name}, line {number}: {error}", "write one JSON object per line") from None
    bad = next((place for place, record in records if not isinstance(record, dict)), None)
    if bad is not None:
        raise InputError(f"{path.name}, {bad} is not a JSON object", 'write {"column": value, ...}')
    if not records:
        raise InputError(f"{path.name} has no samples")
    if len(records) == 1 and len(records[0][1]) > 1 and all(isinstance(each, dict) for each in records[0][1].values()):
        raise InputError(
            f"{path.name} has an object per column instead of one per sample, as pandas' to_json writes by default",
            "to_json(FILE, orient='records', lines=True)",
        )
    columns = list(dict.fromkeys(itertools.chain.from_iterable(record for _, record in records)))
    require_room(
        f"{path.name} ({len(records)} rows, {len(columns)} columns)", 8 * len(records) * len(columns), len(text)
    )
    series = [pd.Series([record.get(name) for _, record in records], dtype=object) for name in columns]
    return Frame(path.name, [name.strip() for name in columns], series, lambda row: records[row][0])


def _read_feather(path: Path) -> Frame:
    """Read a Feather file (Arrow IPC) batch by batch; raises InputError for more than its size allows."""
    require_pyarrow("Feather")
    import pyarrow as pa

    from pflcli.data.formats.parquet import load_batches, to_series

    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
        stored = map(reader.get_batch, range(reader.num_record_batches))
        table = pa.Table.from_batches(load_batches(stored, path.name, path.stat().st_size), reader.schema)
    columns = ["" if name.startswith("__index_level_") else name for name in table.column_names]
    series = [
        to_series(table.column(at), f"{path.name}: column '{name}'", as_text=False) for at, name in enumerate(columns)
    ]
    return _number_rows(path, columns, series)
