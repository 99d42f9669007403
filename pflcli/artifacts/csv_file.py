"""CSV files as bytes: comma separated, UTF-8, one line feed at the end of each row."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def encode(heading: Iterable[str], rows: Iterable[Iterable[Any]]) -> bytes:
    """Return a CSV file with this heading and these rows; None becomes an empty field."""
    return _write(itertools.chain([heading], rows))


class _Lines(list[str]):
    """Lines that csv writes with CR LF, without these two characters."""

    def write(self, line: str) -> None:
        self.append(line[:-2])


def _write(rows: Iterable[Iterable[Any]]) -> bytes:
    """Return rows as CSV.

    The writer quotes a carriage return, which readers take for the end of a row, only if it ends lines itself (until
    Python 3.12).
    """
    lines = _Lines()
    csv.writer(lines, lineterminator="\r\n").writerows(rows)
    return "".join(f"{line}\n" for line in lines).encode()


def encode_rounded(heading: Iterable[str], rows: Iterable[Iterable[Any]]) -> bytes:
    """Return a CSV file whose floats have six significant digits; None and nan become empty fields."""
    # There may be millions of rows: call a function only for floats.
    return encode(
        heading, ([("" if math.isnan(v) else f"{v:.6g}") if isinstance(v, float) else v for v in row] for row in rows)
    )


def encode_rounds(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return a CSV file with a row per round and the columns of the first row; nan becomes an empty field.

    Raises KeyError if a row lacks a column, ValueError if it has an additional one.
    """
    columns = list(rows[0]) if rows else ["round"]
    for row in rows:
        if row.keys() - set(columns):
            raise ValueError(f"a row has the columns {sorted(row)} instead of {columns}")
    return encode(columns, ([_without_nan(row[column]) for column in columns] for row in rows))


def _without_nan(value: Any) -> Any:
    return "" if isinstance(value, float) and math.isnan(value) else value


def escape_formulas(file: bytes) -> bytes:
    """Return a CSV file with an apostrophe before each cell that a spreadsheet would take as a formula.

    Such cells begin with =, +, -, @, a tab or a carriage return. Numbers are not changed.
    """
    rows = list(csv.reader(io.StringIO(file.decode("utf-8"), newline="")))
    return _write([_without_formula(cell) for cell in row] for row in rows)


def _without_formula(cell: str) -> str:
    if not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell
